"""From rows of the table of arms to arms that decode: the pair's weights, one budget, one counter of tokens."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.applicability import NOT_APPLICABLE, absent
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import Arm, decoder_arm, hugging_face_arm
from pipelines.measuring.names import WALL
from predictors.actions import Action
from predictors.bundle import CARD
from predictors.controllers import Controller, DelayedTree, EarlyStop, Survival
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, build_decoder, load_decoder
from runtime.build import NoDraftError
from runtime.causal_model import CausalLanguageModel

WARM_UP_TOKENS = 16  # some rounds of every decoder


@dataclass(frozen=True)
class TimedArm:
    """``run`` decodes; ``decoder`` is ours, where it is one of ours; ``temperatures``: where it is timed (none: everywhere)."""

    name: str
    family: str
    run: Arm
    decoder: Decoder | None = None
    temperatures: tuple[float, ...] | None = None

    @property
    def verifier(self) -> str:
        """The rule by which its drafts are verified, as far as it is known."""
        return str(getattr(getattr(self.decoder, "verifier", None), "name", ""))

    def warm_up(self, prompt: list[int], settings: SamplingSettings) -> None:
        """Decode a few tokens, or all of them where it is not ours."""
        if self.decoder is None:
            self.run(prompt, settings, 0)
        else:
            decoder_arm(self.decoder, WARM_UP_TOKENS)(prompt, settings, 0)

    def at(self, temperature: float) -> bool:
        """Whether it is timed at ``temperature``."""
        return self.temperatures is None or temperature in self.temperatures


def arm_of(
    name: str, family: str, decoder: Decoder, max_new_tokens: int, temperatures: tuple[float, ...] | None = None
) -> TimedArm:
    """A decoder of ours as an arm."""
    return TimedArm(name, family, decoder_arm(decoder, max_new_tokens), decoder, temperatures)


def fixed_tree(pair: ModelPair, action: Action, rule: str) -> Decoder:
    """The decoder that drafts ``action`` at every root and verifies by ``rule``."""
    drafter = {"kind": "delayed_tree", **asdict(action)}
    return build_decoder(pair, {"method": "speculative", "drafter": drafter, "verifier": rule})


class ArmBuilder:
    """``bundles``: folder of exported bundles; ``missing`` collects the names of those that are not there, ``draftless`` those of
    arms that need a draft which the pair has not."""

    def __init__(self, pair: ModelPair, bundles: Path, max_new_tokens: int) -> None:
        self.pair, self.bundles, self.max_new_tokens = pair, bundles, max_new_tokens
        self.missing: list[str] = []
        self.draftless: list[str] = []

    def build(self, rows: Iterable[ArmRow]) -> dict[str, TimedArm]:
        """Arms by name; rows that do not apply here are left out."""
        made = (self._arm(row) for row in rows)
        return {arm.name: arm for arm in made if arm is not None}

    def concurrent(self, rows: Iterable[ArmRow]) -> dict[str, TimedArm]:
        """Those of ``rows`` that are also timed with both models at work at the same time, as ``NAME-wall``: each with a draft
        process (on accelerators a stream) of its own, to be closed after use."""
        on_cpu = self.pair.draft is not None and self.pair.draft.device.type == "cpu"
        overlap = "processes" if on_cpu else "streams"
        arms = {}
        for row in rows:
            decoder = self._decoder(row, {"overlap": overlap}) if row.concurrent else None
            if decoder is not None:
                name, family = row.name + WALL, row.family + WALL
                arms[name] = arm_of(name, family, decoder, self.max_new_tokens, row.temperatures)
        return arms

    def _arm(self, row: ArmRow) -> TimedArm | None:
        try:
            if row.hugging_face is not None:
                return TimedArm(row.name, row.family, self._hugging_face(row), None, row.temperatures)
            decoder = self._decoder(row, {})
        except NoDraftError:
            self.draftless.append(row.name)
            return None
        if decoder is None:
            return None
        return arm_of(row.name, row.family, decoder, self.max_new_tokens, row.temperatures)

    def _decoder(self, row: ArmRow, own: dict[str, Any]) -> Decoder | None:
        """The row's decoder; ``None`` where it does not apply: no such bundle, a model that is asked, no other forward."""
        if row.bundle is not None:
            folder = self._folder(row.bundle)
            return None if folder is None else load_decoder(folder, self.pair, (row.options or {}) | own)
        if row.if_unasked is not None and not self._unasked(row.if_unasked):
            return None
        if row.static_of is not None:
            assert row.temperatures is not None
            (temperature,) = row.temperatures
            return self._static_tree(row.static_of, SamplingSettings(temperature))
        assert row.decoder is not None
        if any(self._folder(name) is None for name in bundles_of(row)):
            return None
        pair = self.pair
        if row.forward is not None:
            if not isinstance(pair.target, CausalLanguageModel) or pair.target.forward == row.forward:
                return None
            pair = ModelPair(pair.target.model, forward="hugging_face")
        return build_decoder(pair, row.decoder | own)

    def _hugging_face(self, row: ArmRow) -> Arm:
        target, draft = self.pair.target, self.pair.draft
        assert isinstance(target, CausalLanguageModel)
        if row.hugging_face == "assisted":
            if not isinstance(draft, CausalLanguageModel):
                raise NoDraftError(f"arm {row.name!r} needs a draft model.")
            return hugging_face_arm(target.model, draft.model, self.max_new_tokens)
        options: dict[str, Any] = {"prompt_lookup_num_tokens": 10} if row.hugging_face == "prompt_lookup" else {}
        return hugging_face_arm(target.model, None, self.max_new_tokens, **options | (row.options or {}))

    def _static_tree(self, name: str, settings: SamplingSettings) -> Decoder | None:
        """The best static tree at ``settings`` that the selector of a bundle knows, verified by its rule."""
        selector = self._controller(name)
        if selector is None:
            return None
        if not isinstance(selector, DelayedTree):
            raise ValueError(
                f"{self.bundles / name} is no selector of trees but {selector.kind}: static_of takes delayed_tree-RULE."
            )
        assert selector.verifier is not None
        return fixed_tree(self.pair, selector.actions[selector.setting(settings).place], selector.verifier)

    def _unasked(self, name: str) -> bool:
        model = self._controller(name)
        return isinstance(model, EarlyStop | Survival) and not model.asks

    def _controller(self, name: str) -> Controller | None:
        """The controller of an exported bundle, if it is there."""
        folder = self._folder(name)
        return None if folder is None else load_decoder(folder, self.pair).controller

    def _folder(self, name: str) -> Path | None:
        """The folder of an exported bundle, if it is there."""
        folder = self.bundles / name
        if (folder / CARD).is_file():
            return folder
        if absent(folder):
            raise NoDraftError(f"{folder}: {NOT_APPLICABLE}.")
        if name not in self.missing:
            self.missing.append(name)
        return None


def bundles_of(row: ArmRow) -> list[str]:
    """Names of the exported bundles that an arm is made of."""
    named = row.bundle or row.static_of
    return [Path(folder).name for folder in _folders_in(row.decoder)] if named is None else [named]


def _folders_in(value: Any) -> list[str]:
    """Every ``bundle`` that a decoder's configuration names."""
    if not isinstance(value, dict):
        return []
    own = [value["bundle"]] if isinstance(value.get("bundle"), str) else []
    return own + [name for one in value.values() for name in _folders_in(one)]
