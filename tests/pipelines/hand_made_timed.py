"""Timed decodes written by hand, one block for each prompt at T=1, as stage ``measure`` leaves them."""

from pipelines.measuring.names import DECODES_FILE, FINDINGS, PROVENANCE, ROUNDS_FILE
from pipelines.measuring.tables import write_decodes, write_rounds
from pipelines.outputs import write_json

SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
SHARES = ("draft", "target", "verify", "controller", "rest")
ORIGIN = {
    "device": {"slug": "toy"},
    "threads": 1,
    "models": {"target": {"dtype": "float32", "forward": "compact"}},
    "commit": None,
    "date": "2026-01-01",
}


def decode(arm: str, family: str, verifier: str, prompt: str, seconds: float, rounds: int = 20, **changes) -> dict:
    """60 tokens in ``rounds`` rounds; a fifth of the time in every phase."""
    who = {"pair": "p", "arm": arm, "family": family, "verifier": verifier, "split": "test", "prompt": prompt}
    place = {"document": f"d{prompt}", "slice": {"a": "code", "b": "prose"}[prompt], "prompt_tokens": 10, **SAMPLING}
    block = {"repeat": 0, "order": 0, "block": f"test/{prompt}/T=1/0", "seed": 0, "led": False, "virtual": False}
    counts = {"tokens": 60, "emitted": 59, "rounds": rounds, "bypassed": 0, "output": [1], "seconds": seconds}
    times = {f"seconds_{name}": seconds / 5 for name in SHARES} | {"seconds_rounds": seconds, "overlapped": 0.0}
    return {**who, **place, **block, **counts, **times, **changes}


def steps(row: dict, levels: int, seconds: float, count: int = 20) -> list[dict]:
    """A prefill, ``count`` rounds of ``levels`` levels, and a last one that the budget cut short and that took no time."""
    keys = ("arm", "split", "prompt", *SAMPLING, "repeat", "block")
    who = {key: row[key] for key in keys}
    made = [(0, 9.0), *[(levels, seconds)] * count, (levels - 1, 0.0)]
    phases = dict.fromkeys(("seconds_target", "seconds_verify", "seconds_controller", "seconds_wait"), 0.0)
    return [
        {**who, "round": number, "prefill": number == 0, "context": 10, "levels": depth, "overlapped": 0.0}
        | {**phases, "seconds_draft": time}
        for number, (depth, time) in enumerate(made)
    ]


def choice(family: str, speeds: dict[str, float]) -> dict:
    """What validation prompts chose at T=1."""
    return {**SAMPLING, "family": family, "arm": max(speeds, key=speeds.__getitem__), "tokens_per_second": speeds}


def write_timed(folder, rows: list[dict], rounds: list[dict] | None = None, choices: list[dict] | None = None) -> None:
    """A folder of the measurement."""
    write_decodes(folder / DECODES_FILE, rows)
    write_rounds(folder / ROUNDS_FILE, rounds or [])
    write_json(folder / FINDINGS, {"choices": choices or [], "capped": False})
    write_json(folder / PROVENANCE, ORIGIN)
