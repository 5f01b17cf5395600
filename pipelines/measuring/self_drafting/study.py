"""What methods without a draft model do on held-out prompts, on the clock: parameters and arms.

chains        the pair's static draft lengths, of which validation prompts choose one
calibrated    every method as exported: as the latency profile says it pays on this machine
given         configurations by name, for example the papers' own
hugging face  plain ``generate``, and prompt lookup
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.measuring.arm_study import ArmStudy, ArmStudyConfig
from pipelines.measuring.arms import hugging_face_arm
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.names import CALIBRATED, CHAIN, GIVEN, HF_LOOKUP, HF_PLAIN, HUGGING_FACE, chain_arm
from pipelines.prompt_table import Prompt
from runtime import ModelPair, build_decoder, load_decoder
from runtime.causal_model import CausalLanguageModel

CHAIN_VERIFIER, OWN_VERIFIER = "block", "match"


@dataclass(frozen=True)
class SelfDraftingConfig(ArmStudyConfig):
    """Section ``self_drafting``: static chains of ``gammas`` (empty for a target without a draft), decoder configurations
    ``given`` by name, and prompt lookup of ``lookup_tokens`` (Hugging Face's ``prompt_lookup_num_tokens``; none: no such arm)."""

    gammas: tuple[int, ...] = (2, 4, 6)
    given: dict | None = None
    lookup_tokens: int | None = 10


class SelfDraftingStudy(ArmStudy):
    """``bundles``: folders of exported methods by name."""

    title = "self-drafting"

    def __init__(
        self,
        pair: ModelPair,
        config: SelfDraftingConfig,
        bundles: Mapping[str, Path],
        prompts: Mapping[str, list[Prompt]],
        log: MeasurementLog,
    ) -> None:
        super().__init__(pair, config, prompts, log)
        for gamma in config.gammas:
            chain = {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}, "verifier": CHAIN_VERIFIER}
            self.add(self.tuned, chain_arm(gamma), CHAIN, CHAIN_VERIFIER, self.arm(build_decoder(pair, chain)))
        for name, folder in bundles.items():
            self.add(self.others, name, CALIBRATED, OWN_VERIFIER, self.arm(load_decoder(folder, pair)))
        for name, way in (config.given or {}).items():
            self.add(self.others, name, GIVEN, OWN_VERIFIER, self.arm(build_decoder(pair, way)))
        assert isinstance(pair.target, CausalLanguageModel)
        for name, lookup in ((HF_PLAIN, None), (HF_LOOKUP, config.lookup_tokens)):
            if name == HF_PLAIN or lookup is not None:
                arm = hugging_face_arm(pair.target.model, None, config.max_new_tokens, lookup)
                self.add(self.others, name, HUGGING_FACE, name, arm)
