"""A challenger on trial: timed beside the champion, or the best static chain, on documents that nothing was trained on.

Arms: the challenger, the champion if there is another one, plain decoding, and static chains, of which validation prompts choose
one. Interleaved and paired by prompt, at the sampling settings that the challenger is calibrated for. Its greedy text is compared
with Hugging Face's own in float32.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.arm_study import ArmStudy, ArmStudyConfig
from pipelines.measuring.arms import decoder_arm, hugging_face_arm
from pipelines.measuring.exactness import GREEDY, first_difference
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.stopping.names import CHAIN
from pipelines.promotion.gate import BEST_STATIC, Evidence
from pipelines.prompt_table import Prompt
from pipelines.reporting.decoding_arms import DecodingArms
from pipelines.reporting.statistics import Interval, PairedBootstrap, less_one
from predictors.bundle import bundle_hash, read_bundle
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, build_decoder, load_decoder
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.decoding.routed import RoutedDecoder

CHALLENGER, CHAMPION = "challenger", "champion"
VERIFIER = "block"


@dataclass(frozen=True)
class TrialConfig(ArmStudyConfig):
    """Section ``trial``: static chains of ``gammas``; ``exactness_prompts`` greedy texts; bootstrap of the intervals. Sampling
    settings are the challenger's own."""

    gammas: tuple[int, ...] = (2, 4, 6, 8)
    exactness_prompts: int = 2
    bootstrap_replicates: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gammas:
            raise ValueError("gammas must name at least one static chain.")
        for name in ("exactness_prompts", "bootstrap_replicates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")


class TrialStudy(ArmStudy):
    """``bundles``: folders of the ``challenger`` and, if there is one, the ``champion``."""

    title = "trial"

    def __init__(
        self,
        pair: ModelPair,
        config: TrialConfig,
        bundles: Mapping[str, Path],
        prompts: Mapping[str, list[Prompt]],
        log: MeasurementLog,
    ) -> None:
        super().__init__(pair, config, prompts, log)
        for gamma in config.gammas:
            chain = {"method": "speculative", "drafter": {"kind": CHAIN, "gamma": gamma}, "verifier": VERIFIER}
            self.add(self.tuned, f"{CHAIN}-{gamma}", CHAIN, VERIFIER, self.arm(build_decoder(pair, chain)))
        for name, folder in bundles.items():
            self.add(self.others, name, name, name, self.arm(load_decoder(folder, pair)))


def settings_of(bundle: Path) -> tuple[SamplingSettings, ...]:
    """The sampling settings that a bundle was captured at."""
    rows = read_bundle(bundle).contract.serving_range.settings
    return tuple(SamplingSettings(temperature, int(top_k), top_p) for temperature, top_k, top_p in rows)


def problem_of(bundle: Path, pair: ModelPair) -> str | None:
    """Why ``bundle`` cannot be read, does not serve ``pair``, changes the output's law, or would be timed on a virtual clock;
    ``None``: nothing speaks against a trial."""
    try:
        settings_of(bundle)
        decoder = load_decoder(bundle, pair)
    except ValueError as error:
        return str(error)
    problems = (_problem(f"{bundle}: {name or 'its decoder'}", one) for name, one in parts_of(decoder).items())
    return next((problem for problem in problems if problem is not None), None)


def parts_of(decoder: Decoder) -> dict[str, Decoder]:
    """The decoders that serve requests, by name: a routed decoder's are its routes'; any other is its own, without a name."""
    if not isinstance(decoder, RoutedDecoder):
        return {"": decoder}
    return {
        ", ".join(filter(None, (f"route {place} ({settings.name})", name))): part
        for place, (settings, route) in enumerate(decoder.routes, 1)
        for name, part in parts_of(route).items()
    }


def _problem(who: str, decoder: Decoder) -> str | None:
    if decoder.lossy:
        return f"{who} is lossy: its output need not follow the target's law. Export it without lossy=True."
    if isinstance(decoder, BranchParallelDecoder) and decoder.host.virtual:
        remedy = "Export it with overlap 'auto', 'processes' or 'streams'."
        if decoder.config.overlap == "auto":
            remedy = "Its overlap 'auto' finds a single core here: try it where there are more."
        return (
            f"{who} drafts and verifies in turn (overlap 'none'), so that its times would be a virtual clock's beside the wall "
            f"clock's of the others. {remedy}"
        )
    return None


def unservable(pair: str, predictor: str, bundle: Path, champion: str | None, problem: str) -> Evidence:
    """What is known of a ``bundle`` that cannot be served (`problem_of`): nothing was measured."""
    return Evidence(
        pair=pair,
        predictor=predictor,
        bundle_sha256=bundle_hash(bundle),
        baseline=champion or BEST_STATIC,
        problem=problem,
        exactness={},
        calibration_error=None,
        gain={},
        slices={},
        documents=(),
        trained_documents=(),
    )


def calibration_error(bundle: Path) -> float | None:
    """Expected calibration error of a bundle's model on documents that were not trained on, of several the largest; ``None``
    without such a model."""
    card = read_bundle(bundle).card
    errors = [
        calibration_error(bundle / name) for name in {route.get("bundle") for route in card.get("routes", [])} - {None}
    ]
    quality = card.get("measured_quality", {})
    errors += [float(quality[part]["ece"]) for part in ("metrics", "tokens") if "ece" in quality.get(part, {})]
    return max((error for error in errors if error is not None), default=None)


def exact(pair: ModelPair, bundle: Path, prompts: Iterable[Sequence[int]], max_new_tokens: int) -> dict[str, bool]:
    """By route and prompt: whether greedy text in float32 is Hugging Face's own (``pair`` in float32). A route that serves other
    settings decodes greedily here, too: its drafts and its bookkeeping are the same."""
    reference = hugging_face_arm(pair.target.model, None, max_new_tokens)  # type: ignore[attr-defined]
    texts = [(list(one), reference(list(one), GREEDY, 0).tokens) for one in prompts]
    decoder = load_decoder(bundle, pair)
    found = {}
    for name, part in parts_of(decoder).items():
        arm = decoder_arm(part, max_new_tokens)
        for number, (prompt, wanted) in enumerate(texts, 1):
            check = ", ".join(filter(None, (name, f"greedy text {number}, float32")))
            found[check] = first_difference(arm(prompt, GREEDY, 0).tokens, wanted) is None
    decoder.close()
    return found


def evidence_of(
    pair: str,
    predictor: str,
    bundle: Path,
    champion: str | None,
    decoding: pd.DataFrame,
    exactness: Mapping[str, bool],
    trained: Iterable[str],
    config: TrialConfig,
    origin: Mapping[str, Any],
) -> Evidence:
    """What the trial's ``decoding`` says of ``bundle``, over the ``champion`` of that content hash or over the best static chain.

    A bundle that does not serve the pair never gets here: it is `unservable`.
    """
    arms = DecodingArms(decoding, config.bootstrap_replicates, config.seed)
    rows, base = (
        pd.concat([arms.rows(setting, _name(arms, setting, which)) for setting in arms.settings], ignore_index=True)
        for which in (CHALLENGER, CHAMPION if champion else CHAIN)
    )
    slices = sorted(rows["slice"].unique())
    return Evidence(
        pair=pair,
        predictor=predictor,
        bundle_sha256=bundle_hash(bundle),
        baseline=champion or BEST_STATIC,
        problem=None,
        exactness=dict(exactness),
        calibration_error=calibration_error(bundle),
        gain=_gain(rows, base, config),
        slices={name: _gain(rows[rows["slice"] == name], base[base["slice"] == name], config) for name in slices},
        documents=tuple(sorted(rows["document"].unique())),
        trained_documents=tuple(sorted(set(trained))),
        origin=dict(origin),
    )


def _name(arms: DecodingArms, setting: str, which: str) -> str:
    return arms.fastest(setting, CHAIN) if which == CHAIN else which


def _gain(rows: pd.DataFrame, base: pd.DataFrame, config: TrialConfig) -> Interval:
    bootstrap = PairedBootstrap(list(rows["document"]), config.bootstrap_replicates, config.seed)
    return less_one(bootstrap.rate_ratio(rows["tokens"], rows["seconds"], base["tokens"], base["seconds"]))
