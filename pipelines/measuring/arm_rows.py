"""Rows of the table of arms in the parameter file. A row with values under ``each`` is an arm for every combination.

    {name: "chain-{gamma}", family: chain, each: {gamma: [2, 4]}, choose: true,
     decoder: {method: speculative, drafter: {kind: chain, gamma: "{gamma}"}, verifier: block}}

``{bundles}`` stands for the folder of exported bundles. A text that is one placeholder becomes the value itself; within a longer
text a number is written as briefly as it can be.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from predictors.config import Checked

HUGGING_FACE = ("generate", "assisted", "prompt_lookup")
FILLED = ("name", "family", "decoder", "bundle", "hugging_face", "options")
PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class ArmRow(Checked):
    """One way of decoding, or one for each combination of ``each``: a ``decoder``, ``bundle`` or ``hugging_face``."""

    name: str
    family: str  # among whose arms validation prompts choose
    decoder: dict | None = None  # its configuration
    bundle: str | None = None  # name of an exported one
    hugging_face: str | None = None  # one of `HUGGING_FACE`
    options: dict | None = None  # besides a bundle's card, or of Hugging Face's generate besides its draft
    each: dict | None = None
    choose: bool = False  # on validation prompts: the fastest of its family stands for it
    forward: str | None = None  # hugging_face: over Hugging Face's own forward, where ours is another

    def __post_init__(self) -> None:
        super().__post_init__()
        sources = ("decoder", "bundle", "hugging_face")
        named = [source for source in sources if getattr(self, source) is not None]
        if len(named) != 1:
            raise ValueError(
                f"arm {self.name!r} must have one of {', '.join(sources)}, got {', '.join(named) or 'none'}."
            )
        if not self.each and self.hugging_face not in (None, *HUGGING_FACE):
            raise ValueError(
                f"arm {self.name!r}: hugging_face is one of {', '.join(HUGGING_FACE)}, got {self.hugging_face!r}."
            )
        if self.forward not in (None, "hugging_face"):
            raise ValueError(f"arm {self.name!r}: forward is hugging_face or left out, got {self.forward!r}.")
        if self.choose and self.bundle is not None:
            raise ValueError(f"arm {self.name!r}: a bundle was chosen when it was exported; leave out choose.")


def chain(gamma: int | str, verifier: str = "block", **more: Any) -> dict[str, Any]:
    """A decoder's configuration that drafts chains of ``gamma`` tokens, a number or a placeholder."""
    return {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}, "verifier": verifier, **more}


def expanded(rows: Iterable[ArmRow], bundles: str) -> list[ArmRow]:
    """Every arm as a row of its own; ``bundles``: folder of the exported ones. `ValueError` for no value, or a name twice."""
    arms: list[ArmRow] = []
    for row in rows:
        each = row.each or {}
        for values in product(*each.values()):
            known = {"bundles": bundles, **dict(zip(each, values, strict=True))}
            filled = {name: _filled(getattr(row, name), known, row.name) for name in FILLED}
            arms.append(replace(row, each=None, **filled))
    names = [arm.name for arm in arms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"arms {', '.join(twice)} are given twice: every arm needs a name of its own.")
    return arms


def _filled(value: Any, known: Mapping[str, Any], arm: str) -> Any:
    """``value`` with its placeholders replaced."""
    if isinstance(value, Mapping):
        return {key: _filled(one, known, arm) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(one, known, arm) for one in value]
    if not isinstance(value, str):
        return value
    missing = [name for name in PLACEHOLDER.findall(value) if name not in known]
    if missing:
        raise ValueError(f"arm {arm!r}: {{{missing[0]}}} has no value. Give it under each: {{{missing[0]}: [...]}}.")
    whole = PLACEHOLDER.fullmatch(value)
    if whole:
        return known[whole[1]]
    return PLACEHOLDER.sub(lambda found: _brief(known[found[1]]), value)


def _brief(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ".".join(map(_brief, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
