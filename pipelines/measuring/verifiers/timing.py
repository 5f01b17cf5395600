"""Decoding with every (drafter, rule), interleaved and paired by prompt, as the benchmark times its arms."""

import random
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from pipelines.measuring.arms import Arm, timed
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN
from pipelines.measuring.seeds import seed_of
from pipelines.measuring.tables import HISTOGRAMS, measured
from pipelines.measuring.verifiers.shapes import Shape
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, build_decoder

ArmName = tuple[str, str]  # shape's name, rule; plain decoding is (PLAIN, PLAIN)
PLAIN_ARM: ArmName = (PLAIN, PLAIN)
LISTS = ("output", *HISTOGRAMS)


def decoder_of(pair: ModelPair, shape: Shape, verifier: str) -> Decoder:
    """The decoder that drafts ``shape`` and verifies with ``verifier``."""
    return build_decoder(pair, {"method": "speculative", "drafter": shape.drafter, "verifier": verifier})


def decoders_of(pair: ModelPair, shapes: Sequence[Shape]) -> dict[ArmName, Decoder]:
    """A decoder for every shape and rule, and plain decoding."""
    speculative = {(s.name, verifier): decoder_of(pair, s, verifier) for s in shapes for verifier in s.verifiers}
    return {PLAIN_ARM: build_decoder(pair, {"method": "autoregressive"}), **speculative}


def decode_rows(
    arms: Mapping[ArmName, Arm],
    families: Mapping[str, str],
    split: str,
    prompt: Prompt,
    settings: SamplingSettings,
    seed: int,
    bar: tqdm,
    repeat: int = 0,
) -> Rows:
    """Every arm on one prompt, in an order drawn from the seed and ``repeat``; ``families`` names each shape's family.

    All draw with one seed, in every repeat: two that do the same emit the same.
    """
    setting = settings.name
    key = f"{seed}/{split}/{prompt.id}/{setting}"
    rows = []
    for order, name in enumerate(random.Random(f"{key}/{repeat}").sample(list(arms), len(arms))):
        drafter, verifier = name
        bar.set_postfix_str(f"{split}, {setting}, {' '.join(dict.fromkeys(name))}")
        run, seconds = timed(arms[name], prompt.tokens, settings, seed_of(key))
        place = {"split": split, "setting": setting, "order": order, "repeat": repeat}
        who = {"prompt": prompt.id, "document": prompt.document, "slice": prompt.slice}
        place["prompt_tokens"] = len(prompt.tokens)
        names = {"family": families.get(drafter, PLAIN), "drafter": drafter, "verifier": verifier}
        counts = {column: value for column, value in measured(run, seconds).items() if column not in LISTS}
        rows.append({**place, **who, **names, **counts})
        bar.update()
    return rows
