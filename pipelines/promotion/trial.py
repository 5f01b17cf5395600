"""A challenger on trial: timed beside the champion, or the best static chain, on documents that nothing was trained on.

Arms: the challenger, the champion if there is another one, plain decoding, and static chains, of which validation prompts choose
one. Interleaved and paired by prompt, at every sampling setting that challenger or champion was captured at. The
challenger's greedy text is compared with Hugging Face's own in float32.
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
from pipelines.measuring.names import CHAIN
from pipelines.promotion.gate import Evidence
from pipelines.promotion.names import BEST_STATIC
from pipelines.prompt_table import Prompt
from pipelines.reporting.decoding_arms import DecodingArms
from pipelines.reporting.statistics import Interval, PairedBootstrap, less_one
from predictors.bundle import bundle_hash, read_bundle
from predictors.controllers import DelayedTree, is_learned
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, build_decoder, load_decoder
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.decoding.routed import RoutedDecoder

CHALLENGER, CHAMPION = "challenger", "champion"
VERIFIER = "block"


@dataclass(frozen=True)
class TrialConfig(ArmStudyConfig):
    """Section ``trial``: static chains of ``gammas``; ``exactness_prompts`` greedy texts; bootstrap of the intervals.
    ``sampling`` (instead of ``temperatures``) is what the bundles were captured at (`settings_of`)."""

    validation_prompts: int = 9
    gammas: tuple[int, ...] = (4, 6, 8, 10, 12)
    sampling: tuple[SamplingSettings, ...] = ()
    exactness_prompts: int = 2
    bootstrap_replicates: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gammas:
            raise ValueError("gammas must name at least one static chain.")
        for name in ("exactness_prompts", "bootstrap_replicates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")

    @property
    def settings(self) -> list[SamplingSettings]:
        return list(self.sampling) or super().settings


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


def learned_documents(known: Iterable[Prompt], test: Iterable[Prompt], facts: Mapping[str, Any]) -> set[str]:
    """Documents of the prompts that controllers were fitted or chosen on, and those that a built-in pair was trained on, by the
    names that ``test`` prompts of them would have. ``facts`` is ``pair.json``; what a real pair was trained on is unknown.
    """
    of_pair = facts["corpus"]["trained_on"] if facts["source"] == "builtin" else []
    names = {f"{source}/{document}" for source in {prompt.source for prompt in test} for document in of_pair}
    return names | {prompt.document for prompt in known}


def settings_of(*bundles: Path) -> tuple[SamplingSettings, ...]:
    """The sampling settings that any of ``bundles`` was captured at."""
    rows = [row for bundle in bundles for row in read_bundle(bundle).contract.serving_range.settings]
    return tuple(dict.fromkeys(SamplingSettings(temperature, int(top_k), top_p) for temperature, top_k, top_p in rows))


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


@dataclass(frozen=True)
class Calibration:
    """Expected calibration ``error`` of a bundle's model on documents that were not trained on; ``None``: unknown, or, with an
    ``exemption``, there is none to know."""

    error: float | None
    exemption: str | None = None


def calibration_of(folder: Path) -> Calibration:
    """The calibration of a bundle; of one with several in it, the worst: an unknown one before any number."""
    bundle = read_bundle(folder)
    nested = {route.get("bundle") for route in bundle.card.get("routes", [])} - {None}
    if nested:
        return _worst([calibration_of(folder / name) for name in sorted(nested)])
    if bundle.card["kind"] == DelayedTree.kind:
        return Calibration(None, "a delayed-tree selector ranks trees and forecasts no probabilities")
    if not is_learned(bundle):
        return Calibration(None, "no model to calibrate")
    quality = bundle.card.get("measured_quality", {})
    errors = [quality.get(part, {}).get("ece") for part in ("metrics", "tokens")]
    return Calibration(max((float(error) for error in errors if error is not None), default=None))


def _worst(found: Sequence[Calibration]) -> Calibration:
    if any(one.error is None and one.exemption is None for one in found):
        return Calibration(None)
    errors = [one.error for one in found if one.error is not None]
    if errors:
        return Calibration(max(errors))
    return Calibration(None, "; ".join(dict.fromkeys(str(one.exemption) for one in found)))


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
    chosen = {setting: arms.fastest(setting, CHAIN) for setting in arms.settings}
    fastest = {setting: arms.fastest(setting, CHAIN, in_hindsight=True) for setting in arms.settings}
    base = _rows(arms, dict.fromkeys(arms.settings, CHAMPION) if champion else chosen)
    calibration = calibration_of(bundle)
    rows, hindsight = _rows(arms, dict.fromkeys(arms.settings, CHALLENGER)), _rows(arms, fastest)
    return Evidence(
        pair=pair,
        predictor=predictor,
        bundle_sha256=bundle_hash(bundle),
        baseline=champion or BEST_STATIC,
        problem=None,
        exactness=dict(exactness),
        calibration_error=calibration.error,
        gain=_gain(rows, base, config),
        slices=_gains(rows, base, config),
        documents=tuple(sorted(rows["document"].unique())),
        trained_documents=tuple(sorted(set(trained))),
        origin={
            **origin,
            "lineage": read_bundle(bundle).card.get("lineage"),
            "static": {"chosen": chosen, "fastest": fastest, "hindsight": _gains(rows, hindsight, config)},
        },
        hindsight=_gain(rows, hindsight, config),
        exemption=calibration.exemption,
    )


def _rows(arms: DecodingArms, names: Mapping[str, str]) -> pd.DataFrame:
    """Test prompts at every sampling setting, of the arm that ``names`` has for it."""
    return pd.concat([arms.rows(setting, name) for setting, name in names.items()], ignore_index=True)


def _gains(rows: pd.DataFrame, base: pd.DataFrame, config: TrialConfig) -> dict[str, Interval]:
    """At every sampling setting, and in every slice at it."""
    found = {}
    for setting, place in rows.groupby("setting").indices.items():
        found[str(setting)] = _gain(rows.iloc[place], base.iloc[place], config)
        for name, part in rows.iloc[place].groupby("slice").groups.items():
            found[f"{setting} {name}"] = _gain(rows.loc[part], base.loc[part], config)
    return found


def _gain(rows: pd.DataFrame, base: pd.DataFrame, config: TrialConfig) -> Interval:
    assert list(rows["prompt"]) == list(base["prompt"]), "arms are paired by prompt"
    bootstrap = PairedBootstrap(list(rows["document"]), config.bootstrap_replicates, config.seed)
    return less_one(bootstrap.rate_ratio(rows["tokens"], rows["seconds"], base["tokens"], base["seconds"]))
