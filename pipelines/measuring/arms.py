"""Ways of decoding a prompt with one budget and one token counter: a decoder of ours or Hugging Face's ``generate``, built over a
pair's weights from rows of the table of arms (`pipelines.measuring.arm_rows`)."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from pipelines.measuring.arm_rows import ArmRow
from pipelines.outputs import NOT_APPLICABLE, absent
from predictors.bundle import CARD
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, Randomness, build_decoder, load_decoder
from runtime.build import NoDraftError
from runtime.causal_model import CausalLanguageModel
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.request import until_end

WARM_UP_TOKENS = 16  # some rounds of every decoder


@dataclass(frozen=True)
class ArmRun:
    """New ``tokens`` up to and including the first end-of-sequence token; ``rounds`` is ``None`` where unknown; ``virtual``:
    draft and target ran one after the other, and count as if side by side."""

    tokens: list[int]
    rounds: list[RoundRecord] | None
    virtual: bool = False


Arm = Callable[[list[int], SamplingSettings, int], ArmRun]  # (prompt, settings, seed)
Decode = Callable[[], ArmRun]  # of all that is given


def decoder_arm(decoder: Decoder, max_new_tokens: int) -> Arm:
    """One of our decoders as an arm."""

    def decode(prompt: list[int], settings: SamplingSettings, seed: int) -> ArmRun:
        randomness = Randomness(seed)
        options = {"invariant": settings.invariant or None, **settings.filters}  # None: the decoder's own way to sample
        out = decoder.generate(prompt, max_new_tokens=max_new_tokens, randomness=randomness, **options)
        return ArmRun(out.tokens, out.rounds, virtual)

    virtual = isinstance(decoder, BranchParallelDecoder) and decoder.overlap.virtual
    return decode


def hugging_face_arm(target: PreTrainedModel, draft: PreTrainedModel | None, max_new_tokens: int, **own: Any) -> Arm:
    """Hugging Face ``generate``, with its ``own`` options by their names there (``prompt_lookup_num_tokens``; over a
    ``cache_implementation`` of ``static`` it compiles); with a ``draft``, assisted generation as it comes, without state from one
    prompt to the next. Sizes of embeddings that differ would make it translate texts: there, a copy of the draft is resized."""
    size = target.config.get_text_config().vocab_size
    if draft is not None and draft.config.get_text_config().vocab_size != size:
        draft = copy.deepcopy(draft)
        draft.resize_token_embeddings(size, mean_resizing=False)
    eos = getattr(target.generation_config, "eos_token_id", None)
    eos_tokens = [eos] if isinstance(eos, int) else eos

    def decode(prompt: list[int], settings: SamplingSettings, seed: int) -> ArmRun:
        ids = torch.tensor([prompt], device=target.device)
        sampling = {"do_sample": False} if settings.greedy else {"do_sample": True, **settings.filters}
        config = GenerationConfig(  # filters that are off are off by name: Hugging Face fills an unset top_k with 50
            eos_token_id=eos_tokens,
            pad_token_id=eos_tokens[0] if eos_tokens else 0,
            max_new_tokens=max_new_tokens,
            **sampling,
            **own,
        )
        options: dict[str, Any] = {} if draft is None else {"assistant_model": draft}
        before = target.generation_config, None if draft is None else copy.deepcopy(draft.generation_config)
        torch.manual_seed(seed)
        try:
            target.generation_config = GenerationConfig()  # the model's own penalties would fill what is unset, too
            out = target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **options)
        finally:
            target.generation_config = before[0]
            if draft is not None:
                draft.generation_config = before[1]
        return ArmRun(until_end(out[0, len(prompt) :].tolist(), eos_tokens or ()), None)

    return decode


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
        run = self.run if self.decoder is None else decoder_arm(self.decoder, WARM_UP_TOKENS)
        run(prompt, settings, 0)

    def at(self, temperature: float) -> bool:
        """Tell whether it is timed at ``temperature``."""
        return self.temperatures is None or temperature in self.temperatures


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

    def _arm(self, row: ArmRow) -> TimedArm | None:
        try:
            if row.hugging_face is not None:
                return TimedArm(row.name, row.family, self._hugging_face(row))
            decoder = self._decoder(row)
        except NoDraftError:
            self.draftless.append(row.name)
            return None
        if decoder is None:
            return None
        return TimedArm(row.name, row.family, decoder_arm(decoder, self.max_new_tokens), decoder)

    def _decoder(self, row: ArmRow) -> Decoder | None:
        """The row's decoder; ``None`` where it does not apply: no such bundle, no other forward."""
        if row.bundle is not None:
            folder = self._folder(row.bundle)
            return None if folder is None else load_decoder(folder, self.pair, row.options or {})
        assert row.decoder is not None
        if any(self._folder(name) is None for name in bundles_of(row)):
            return None
        pair = self.pair
        if row.forward is not None:
            if not isinstance(pair.target, CausalLanguageModel) or pair.target.forward == row.forward:
                return None
            pair = ModelPair(pair.target.model, forward="hugging_face")
        return build_decoder(pair, row.decoder)

    def _hugging_face(self, row: ArmRow) -> Arm:
        target, draft = self.pair.target, self.pair.draft
        assert isinstance(target, CausalLanguageModel)
        if row.hugging_face == "assisted":
            if not isinstance(draft, CausalLanguageModel):
                raise NoDraftError(f"arm {row.name!r} needs a draft model.")
            return hugging_face_arm(target.model, draft.model, self.max_new_tokens)
        options: dict[str, Any] = {"prompt_lookup_num_tokens": 10} if row.hugging_face == "prompt_lookup" else {}
        return hugging_face_arm(target.model, None, self.max_new_tokens, **options | (row.options or {}))

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
    return [Path(folder).name for folder in _folders_in(row.decoder)] if row.bundle is None else [row.bundle]


def _folders_in(value: Any) -> list[str]:
    """Every ``bundle`` that a decoder's configuration names."""
    if not isinstance(value, dict):
        return []
    own = [value["bundle"]] if isinstance(value.get("bundle"), str) else []
    return own + [name for one in value.values() for name in _folders_in(one)]
