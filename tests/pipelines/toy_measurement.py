"""Real decoders timed on a few prompts into a folder as stage ``measure`` leaves it, every arm on every prompt."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipelines.measuring.arms import Arm, decoder_arm, timed
from pipelines.measuring.names import DECODES_FILE, FINDINGS, PROVENANCE, ROUNDS_FILE
from pipelines.measuring.tables import measured, rounds_of, write_decodes, write_rounds
from pipelines.outputs import write_json
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Decoder

ORIGIN = {"commit": None, "date": "today", "threads": 1, "parameters": {"beta": 0.4}}
ORIGIN |= {"device": {"slug": "toy-1c"}, "models": {"target": {"dtype": "float32", "forward": "compact"}}}


def measure(
    folder: Path,
    arms: Mapping[str, tuple[str, Decoder | Arm]],
    prompts: Iterable[Prompt],
    chosen: Mapping[str, str],
    temperatures: Iterable[float] = (0.0, 1.0),
    max_new_tokens: int = 12,
) -> None:
    """Time ``arms``, by name their family and decoder; ``chosen``: an arm by family."""
    decodes, rounds = [], []
    temperatures = list(temperatures)
    runners = {
        name: (family, decoder_arm(made, max_new_tokens) if isinstance(made, Decoder) else made)
        for name, (family, made) in arms.items()
    }
    for prompt in prompts:
        for temperature in temperatures:
            block = f"test/{prompt.id}/T={temperature:g}/0"
            for order, (name, (family, arm)) in enumerate(runners.items()):
                run, seconds = timed(arm, prompt.tokens, SamplingSettings(temperature), 0)
                key = {"arm": name, "split": "test", "prompt": prompt.id, "temperature": temperature, "repeat": 0}
                key["block"] = block
                who = {"pair": "p", "family": family, "verifier": "block", "slice": prompt.slice, "order": order}
                who |= {"document": prompt.document, "prompt_tokens": len(prompt.tokens), "seed": 0, "led": False}
                decodes.append(key | who | measured(run, seconds))
                rounds += [key | row for row in rounds_of(run, len(prompt.tokens))]
    write_decodes(folder / DECODES_FILE, decodes)
    write_rounds(folder / ROUNDS_FILE, rounds)
    choices = [{"family": f, "temperature": t, "arm": arm} for t in temperatures for f, arm in chosen.items()]
    empty = {"exactness": [], "notes": [], "bundle": None, "forward_agreement": {}}
    write_json(folder / FINDINGS, empty | {"choices": choices, "capped": False})
    write_json(folder / PROVENANCE, ORIGIN)
