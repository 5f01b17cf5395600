"""Recorded texts of a pair (traces ``texts``), and blocks whose arms are led along one text of the target's own
(`runtime.leading`), recorded or not, where that is proved exact."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from pipelines.applicability import absent
from pipelines.measuring.arms import Decode, Run, TimedArm
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.prompt_table import Prompt
from predictors.controllers.survival import SurvivalSession
from predictors.controllers.takeover import Takeover
from predictors.controllers.unlearned import Fixed
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from predictors.training.text_table import TextTable
from runtime import Decoder, ModelPair, Randomness, build_decoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.chain import ChainConfig
from runtime.identity import require_pair
from runtime.leading import GivenText, OffTapeError, Tape, plan, why_not_led

StaticChain = tuple[int, float | None, str]  # its length, its draft temperature and its verifier


class RecordedTexts:
    """The text traces in ``folder``, cut to ``max_new_tokens``; where there is none, nothing is recorded."""

    def __init__(self, folder: Path | None, max_new_tokens: int) -> None:
        self.max_new_tokens = max_new_tokens
        self.table = None if folder is None or not folder.is_dir() or absent(folder) else TextTable.read(folder)

    @property
    def sha256(self) -> str | None:
        """Of their content."""
        return None if self.table is None else self.table.manifest.content_hash

    def require(self, pair: ModelPair) -> None:
        """`ContractError` unless they were recorded for ``pair``."""
        if self.table is not None:
            require_pair(
                self.table.manifest.capture_contract("traces texts").identity, pair, "the table of recorded texts"
            )

    def of(self, split: str) -> list[RecordedText]:
        """The texts of a split that fit the budget."""
        if self.table is None or split not in self.table.column("split"):
            return []
        cut = (text.within(self.max_new_tokens) for text in self.table.rows(split).texts())
        return [text for text in cut if text is not None]

    def tokens(self, prompt: str, settings: SamplingSettings) -> list[int] | None:
        """The recorded text of a prompt at a sampling setting."""
        return self._tokens.get((prompt, settings))

    def first(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Prompts that are recorded first, else in their order."""
        known = {prompt for prompt, _ in self._tokens}
        return sorted(prompts, key=lambda prompt: prompt.id not in known)

    @cached_property
    def _tokens(self) -> dict[tuple[str, SamplingSettings], list[int]]:
        texts = (text for split in (VALIDATION, TEST) for text in self.of(split))
        return {(text.prompt_id, text.settings): text.tokens for text in texts}


class TextLeader:
    """Leads the arms of ``pair``. A block's text is the recorded one of its prompt and setting among ``texts``, or plain
    decoding's own by the block's seed: either follows the target's distribution. Text and plans are made before anything is
    timed. What cannot be planned is said, and decodes freely."""

    def __init__(self, pair: ModelPair, max_new_tokens: int, texts: RecordedTexts | None = None) -> None:
        self.pair, self.max_new_tokens, self.texts = pair, max_new_tokens, texts
        self._plain = build_decoder(pair, {"method": "autoregressive"})

    def block(self, prompt: Prompt, settings: SamplingSettings, seed: int) -> "LedText | None":
        """The text of this prompt, setting and seed; ``None`` where passes of other shapes round its probabilities to 0."""
        tokens = None if self.texts is None else self.texts.tokens(prompt.id, settings)
        if tokens is None:
            options = {"max_new_tokens": self.max_new_tokens, **asdict(settings)}
            tokens = self._plain.generate(prompt.tokens, randomness=Randomness(seed), **options).tokens
        try:
            text = GivenText.of(self.pair, prompt.tokens, tokens, settings, self.max_new_tokens)
        except ValueError as error:
            warnings.warn(f"{prompt.id}, {settings.name}: no arm is led: {error}", stacklevel=2)
            return None
        return LedText(text, seed, recorded=self.pair.target.programs is not None)


@dataclass(frozen=True)
class LedText:
    """A block's text, along which its arms are led; ``recorded``: the pair's passes are recorded programs, and so are draws.
    ``tapes`` of static chains serve every arm that drafts one, bundles among them."""

    text: GivenText
    seed: int
    recorded: bool = False
    tapes: dict[StaticChain, Tape] = field(default_factory=dict)

    def decode(self, arm: TimedArm) -> Decode | None:
        """A decode of the text, planned and not yet run; ``None`` for an arm that cannot be led."""
        decoder = arm.decoder
        if decoder is None or why_not_led(decoder, self.text.settings) is not None:
            return None
        try:
            tape = self._tape(decoder)
        except ValueError as error:
            warnings.warn(f"{arm.name} decodes a text of its own: {error}", stacklevel=2)
            return None

        def run() -> Run:
            chance = tape.chance(recorded=self.recorded)
            out = decoder.generate(list(self.text.prompt), randomness=chance, **self.text.options)
            if not tape.followed(out):  # recorded draws follow numbers, which rounding may turn
                raise OffTapeError("its draws were not those planned.")
            return Run(out.tokens, out.rounds)

        return run

    def _tape(self, decoder: Decoder) -> Tape:
        """Its tape; without tails where nothing looks at them, and chance is no recorded program."""
        settings = self.text.settings
        chain = static_chain(decoder, settings)
        free = chain is not None or looks_at_nothing(decoder, settings)
        tape = None if chain is None else self.tapes.get(chain)
        if tape is None:
            tape = plan(decoder, self.text, self.seed, tails=self.recorded or not free)
        if chain is not None:
            self.tapes[chain] = tape
        return tape


def static_chain(decoder: Decoder, settings: SamplingSettings) -> StaticChain | None:
    """The one chain that ``decoder`` drafts in every round at ``settings``; ``None``: none is known."""
    chosen = decoder.route(settings)
    if not isinstance(chosen, SequentialDecoder) or not isinstance(chosen.drafter, ChainConfig):
        return None
    session = chosen.controller.start(settings)
    if isinstance(session, Fixed):
        length = session.gamma
    elif isinstance(session, SurvivalSession) and not session.setting.pays:
        length = session.setting.static_length
    else:
        return None
    most = chosen.drafter.gamma
    return most if length is None else min(length, most), chosen.drafter.draft_temperature, chosen.verifier.name


def looks_at_nothing(decoder: Decoder, settings: SamplingSettings) -> bool:
    """Whether no decision at ``settings`` depends on what is drafted after the first rejected token: it then needs no passes of
    the target."""
    controller = getattr(decoder.route(settings), "controller", None)
    while isinstance(controller, Takeover):
        controller = controller.otherwise
    return type(controller) is Fixed
