"""A measurement written by hand: arms of known speed on six prompts, and the records that other stages leave beside it."""

from collections.abc import Iterable

import numpy as np

from pipelines.measuring.names import (
    CALIBRATED,
    CHAIN,
    CONFIDENCE,
    DECODES_FILE,
    DYNAMIC,
    FINDINGS,
    FORK,
    GIVEN,
    HRAD,
    HUGGING_FACE,
    LEARNED,
    LENGTH,
    METHODS,
    PEARL,
    PLAIN,
    PLAIN_FAMILY,
    PROVENANCE,
    ROUNDS_FILE,
    RULE,
    UNLEARNED,
    WITHOUT_BRANCHES,
    branch_arm,
)
from pipelines.measuring.tables import write_decodes, write_rounds
from pipelines.outputs import write_json
from predictors.sampling import SAMPLING

UNFILTERED = {"top_k": 0, "top_p": 1.0, "invariant": False}
STOPPERS = ("logistic", "specdecpp", "early_stop-1", "early_stop-2")
PHASES = {"draft": 0.3, "target": 0.4, "verify": 0.1, "controller": 0.05, "rest": 0.15}  # shares of the time
MAIN_SPEED = {  # tokens per second
    "autoregressive": 100,
    "plain_hf_forward": 82,
    "hf_generate": 80,
    "hf_assisted": 120,
    "chain-1": 130,
    "chain-3": 160,
    "confidence-0.4": 150,
    "entropy": 160,
    "hrad": 176,
    "length": 150,
}
STOP_SPEED = {"roc": 152, "early_stop-1": 170, "fork-4.2": 120, "fork-4.2 early_stop-1": 132}
ALONE_SPEED = {"progressive_tree": 150, "lookahead": 120, "self_draft": 80}
ALONE_SPEED |= {"progressive_tree-paper": 140, "hf_prompt_lookup": 100}
BRANCH_SPEED = {
    "pearl-2": 250,  # fast on test prompts, but not what validation chose
    "pearl-4": 170,
    "specbranch-8": 240,
    "specbranch-no-hrad-4": 200,
    "specbranch-no-branch-8": 150,
}
SPEED = MAIN_SPEED | STOP_SPEED | ALONE_SPEED | BRANCH_SPEED
STOPPED = {"family": DYNAMIC, "decoder": {"controller": {"threshold": 0.4}}}  # as the parameter file names it
CHOSEN = {CHAIN: "chain-3", CONFIDENCE: "confidence-0.4", FORK: "fork-4.2"}
CHOSEN |= {"pearl": "pearl-4", "specbranch": "specbranch-8"}  # the others are the only ones of their kind, or twins
PEARL_ROUNDS = {"levels": 100, "rolled_back": 40, "trimmed": 0, "hits": 10, "branch_points": 25, "tested_points": 20}
SPECBRANCH_ROUNDS = {"levels": 80, "rolled_back": 16, "trimmed": 4, "hits": 18, "branch_points": 24}
SPECBRANCH_ROUNDS |= {"tested_points": 21, "drafted": 200}
FAMILIES = dict.fromkeys((PLAIN, "plain_hf_forward"), PLAIN_FAMILY) | dict.fromkeys((*UNLEARNED, *STOPPERS), RULE)
FAMILIES |= dict.fromkeys((HRAD, LENGTH), LEARNED) | {"entropy": RULE} | dict.fromkeys(METHODS, CALIBRATED)
PREFIXES = {"hf_": HUGGING_FACE, "chain-": CHAIN, "confidence-": CONFIDENCE, "fork-": FORK}


def family_of(arm: str) -> str:
    branching = branch_arm(arm)
    if branching is not None:
        return branching.family
    if arm.startswith("fork-") and " " in arm:
        return DYNAMIC
    return FAMILIES.get(arm) or next((family for prefix, family in PREFIXES.items() if arm.startswith(prefix)), GIVEN)


def decodes(
    speed: dict[str, float] = SPEED, noise: float = 0.05, temperatures: Iterable[float] = (0.0, 1.0)
) -> list[dict]:
    """Rows of every arm on all of six prompts, whose pace differs fourfold."""
    generator = np.random.default_rng(0)
    rows = []
    for index in range(6):
        who = {"prompt": f"p{index}", "document": f"d{index // 2}", "slice": ("code", "prose")[index % 2]}
        place = {"pair": "p", "split": "test", **who, "prompt_tokens": 20, "verifier": "block"}
        for temperature in temperatures:
            pace = generator.uniform(0.5, 2.0)  # what a prompt does to all arms
            for repeat in range(2):
                block = f"test/p{index}/T={temperature:g}/{repeat}"
                where = {
                    "temperature": temperature,
                    **UNFILTERED,
                    "repeat": repeat,
                    "block": block,
                    "seed": 2 * index + repeat,
                }
                for order, (arm, rate) in enumerate(speed.items()):
                    seconds = 60 / rate * pace * (1 + noise * generator.uniform()) * (1 + 0.1 * repeat)
                    row = {**place, **where, "arm": arm, "family": family_of(arm), "order": order, "virtual": False}
                    row |= {"tokens": 60, "seconds": seconds, "output": [1, 2]}
                    rows.append(row if arm.startswith("hf") else row | counts_of(arm, seconds, index))
    return rows


def counts_of(arm: str, seconds: float, more: int = 0) -> dict:
    """What 30 rounds did: the faster the arm, the more was accepted, and so many tokens ``more``."""
    drafted = 0 if arm in (PLAIN, "plain_hf_forward") else 60
    accepted = min(drafted, SPEED.get(arm, 100) // 10 + 15 + more)
    counts = {"rounds": 30, "drafted": drafted, "levels": drafted, "accepted": accepted, "emitted": 29 + accepted}
    counts |= {"rolled_back": drafted - accepted, "segments": 30, "tried": 15, "submitted": drafted, "guessed": 90}
    return {
        **counts,
        **dict.fromkeys(("asked", "idle_levels", "trimmed", "bypassed", "branch_points", "tested_points", "hits"), 0),
        **{f"seconds_{phase}": seconds * share for phase, share in PHASES.items()},
        **dict.fromkeys(("seconds_wait", "overlapped", "seconds_steady", "seconds_steady_wait"), 0.0),
        "seconds_rounds": 0.9 * seconds,
        **branch_counts(arm, seconds),
    }


def branch_counts(arm: str, seconds: float) -> dict:
    """What 30 rounds of a branch-parallel arm did; nothing of others."""
    branching = branch_arm(arm)
    if branching is None:
        return {}
    if branching.preset == WITHOUT_BRANCHES:
        return {"levels": 60, "rolled_back": 20}
    counts, idle = (PEARL_ROUNDS, 0.4) if branching.preset == PEARL else (SPECBRANCH_ROUNDS, 0.1)
    steady = {"seconds_steady": 0.5 * seconds, "seconds_steady_wait": 0.5 * seconds * idle}
    return {**counts, "segments": 30 - counts["hits"], "virtual": True, **steady}


def rounds_of(row: dict) -> list[dict]:
    """A prefill and two rounds of a decode."""
    keys = ("arm", "split", "prompt", *SAMPLING, "repeat", "block")
    who = {key: row[key] for key in keys} | {"ends_segment": True, "law_known": False, "guessed": 0, "candidates": 0}
    who |= {"asked": 0, "idle_levels": 0}
    drafted = 0 if row["arm"] == PLAIN else 2
    made = {"submitted": drafted, "nodes": drafted, "levels": drafted, "drafted": drafted, "passes": drafted}
    contexts = (0, row["prompt_tokens"], row["prompt_tokens"] + 1)
    return [
        who | made | {"round": number, "prefill": number == 0, "context": context, "emitted": 1, "accepted": 0}
        for number, context in enumerate(contexts)
    ]


def write_measured(folder, rows=None, chosen=CHOSEN, rounds=()) -> None:
    """A folder as stage ``measure`` leaves it; ``rounds`` of arms that do not have the usual ones."""
    rows = decodes() if rows is None else rows
    write_decodes(folder / DECODES_FILE, rows)
    own = {row["arm"] for row in rounds}
    usual = [made for row in rows if "rounds" in row and row["arm"] not in own for made in rounds_of(row)]
    write_rounds(folder / ROUNDS_FILE, [*usual, *rounds])
    timed = {row["arm"] for row in rows}
    findings = {
        "choices": [
            {"temperature": t, **UNFILTERED, "family": family, "arm": arm, "tokens_per_second": {arm: 1.0}}
            for t in (0.0, 1.0)
            for family, arm in chosen.items()
            if arm in timed
        ],
        "exactness": [
            {"arm": arm, "exact_float32": True, "differs": [None]} for arm in MAIN_SPEED if not arm.startswith("hf")
        ],
        "notes": ["<b>note</b>"],
        "forward_agreement": {"target": {"compact": 2e-6, "rounding": 3e-6}},
    }
    write_json(folder / FINDINGS, findings)
    device = {"slug": "toy-1c", "cpu": "toy", "cores": 1, "gpus": [], "bfloat16_flags": [], "system": "Linux"}
    origin = {
        "commit": "abc",
        "uncommitted_changes": False,
        "versions": {"python": "3", "torch": "2"},
        "device": device,
        "date": "2026-01-01",
        "pair": "p",
        "threads": 1,
        "models": {name: {"dtype": "float32", "forward": "compact"} for name in ("target", "draft")},
        "parameters": {"max_new_tokens": 60, "repeats": 2, "arms": [STOPPED]},
        **{f"{name}_sha256": "0" * 64 for name in ("pair", "prompts", "bundle", "code")},
    }
    write_json(folder / PROVENANCE, origin)


def head_record() -> dict:
    """What stage ``fit`` says of a head, at two sampling settings; at T=1 its rule loses."""
    bins = [{"from": 0.4, "rows": 10, "confidence": 0.45, "accuracy": 0.5}]
    known = {"macro_auc": 0.7, "ece": 0.03, "reliability": bins}

    def part(gain: float) -> dict:
        gains = {"head": gain, "head_argmax": -0.1, "confidence": 0.02, "best_static": 0.0, "oracle": 0.3}
        return {"metrics": {"head": known}, "policies": _policies(gains), "static_length": 3}

    return {"family": "head", "parts": {"T=0": part(0.05), "T=1": part(-0.04)}}


def write_records(folder) -> None:
    """Records of two heads and two stop models, as stage ``fit`` leaves them."""
    for name in (HRAD, LENGTH):
        write_json(folder / f"{name}.json", head_record())
    gains = {"static": 0.0, "model": 0.06, "asked": 0.01, "asked for nothing": 0.07, "perfect": 0.3}
    part = {"static_length": 2, "policies": _policies(gains)}
    for name, auroc in (("early_stop-1", 0.8), ("logistic", 0.7)):
        quality = {"all": {"tokens": 400, "auroc": auroc, "ece": 0.03}}
        write_json(folder / f"{name}.json", {"family": "stop", "tokens": quality, "parts": {"T=1": part}})


def _policies(gains: dict[str, float]) -> dict:
    return {name: {"gain": {"value": gain, "low": gain - 0.02, "high": gain + 0.02}} for name, gain in gains.items()}
