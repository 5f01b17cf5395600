"""Blocks whose arms are led along one text of the target's own (`runtime.leading`), where that is proved exact."""

from dataclasses import asdict, dataclass, field

from pipelines.measuring.arm_builder import TimedArm
from pipelines.measuring.arms import Run
from pipelines.measuring.harness import Decode
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.leading import GivenText, plan, why_not_led


class Leader:
    """Leads the arms of ``pair``. The text of a block is plain decoding's own by the block's seed, so it follows the target's law;
    it is drawn before anything is timed, as is what leads an arm."""

    def __init__(self, pair: ModelPair, max_new_tokens: int) -> None:
        self.pair, self.max_new_tokens = pair, max_new_tokens
        self._plain = build_decoder(pair, {"method": "autoregressive"})

    def block(self, prompt: Prompt, settings: SamplingSettings, seed: int) -> "LedText":
        """The text that this prompt, setting and seed have."""
        options = {"max_new_tokens": self.max_new_tokens, **asdict(settings)}
        tokens = self._plain.generate(prompt.tokens, randomness=Randomness(seed).stream("text"), **options).tokens
        text = GivenText.of(self.pair.target, prompt.tokens, tokens, settings, self.max_new_tokens)
        return LedText(text, prompt.tokens, settings, self.max_new_tokens, seed)


@dataclass
class LedText:
    """A block's text, along which its arms are led."""

    text: GivenText
    prompt: list[int]
    settings: SamplingSettings
    max_new_tokens: int
    seed: int
    options: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.options = asdict(self.settings)

    def decode(self, arm: TimedArm) -> Decode | None:
        """A decode of the text, planned and not yet run; ``None`` for an arm that cannot be led."""
        decoder = arm.decoder
        if decoder is None or why_not_led(decoder) is not None:
            return None
        tape = plan(decoder, self.text, self.seed)

        def run() -> Run:
            out = decoder.generate(
                self.prompt, max_new_tokens=self.max_new_tokens, randomness=tape.chance(), **self.options
            )
            return Run(out.tokens, out.rounds)

        return run
