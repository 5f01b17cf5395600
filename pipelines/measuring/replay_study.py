"""Every policy for chains and branches on every recorded text: parameters and arms.

    plain, chains of every length, confidence at every ε, entropy at every λ, roc, ema, rivals, branch-parallel presets, every
    bundle that decides about chains or branches (and stop models that calibration leaves off, forced), and the oracle

What a bundle decides is replayed at the sampling settings that it is calibrated for.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pipelines.measuring import names
from pipelines.measuring.arm_rows import ArmRow, chain
from pipelines.measuring.arm_rows import expanded as rows_of
from pipelines.measuring.arms import bundles_of
from pipelines.measuring.reference import configured_policy
from pipelines.measuring.tables import BRANCHES, ORACLE, Rows
from predictors.bundle import read_bundle
from predictors.config import Checked, Count, Positive, not_empty, one_of, parse_config
from predictors.controllers import CONTROLLERS, build_controller
from predictors.controllers.early_stop import EarlyStop
from predictors.controllers.grow import Grow
from predictors.controllers.survival import Survival
from predictors.latency.profile import LatencyProfile
from predictors.replay.acceptance import CHAIN_RULES, BeyondRecordError
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.decode import Clock, Decode
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from runtime.branching.draft import BranchDecoderConfig
from runtime.build import PAIR_METHODS
from runtime.presets import default_controller, expanded


@dataclass(frozen=True)
class ReplayConfig(Checked):
    """Section ``replay``: static chains of ``gammas``, confidence rules at ``epsilons``, entropy rules (AdaEDL) that begin at
    ``thresholds`` λ, and the ``verifier``. Rules without a length of their own draft at most the longest of ``gammas``.
    ``rivals``: rows of further decoders, as in section ``measure``. ``branch_gammas``: lengths of static branch-parallel presets,
    with a shorter idle draft stage in front if two are given. ``cost_ratios``: machines on which so many draft steps take as long
    as a target pass, where policies for chains are replayed too."""

    gammas: Annotated[tuple[Count, ...], not_empty] = (1, 2, 3, 4, 5, 6, 8, 10, 12)
    epsilons: Annotated[tuple[float, ...], not_empty] = (0.1, 0.2, 0.3)
    thresholds: Annotated[tuple[float, ...], not_empty] = (0.3, 0.5, 0.7)
    rivals: tuple[ArmRow, ...] = ()
    branch_gammas: tuple[tuple[int, ...], ...] = ((4,), (8,), (4, 8))
    cost_ratios: tuple[Positive, ...] = ()
    verifier: Annotated[str, one_of(*CHAIN_RULES)] = "block"
    threads: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for lengths in self.branch_gammas:
            if len(lengths) not in (1, 2):
                raise ValueError(f"branch_gammas must be one length or two each, got {list(lengths)}.")


Play = Callable[[RecordedText, Sequence[Clock]], list[Decode]]
POSTERIOR = "posterior"  # retention that replay knows


@dataclass(frozen=True)
class ReplayArm:
    """A named policy of a ``family``: what it makes of a text (``play``) by each clock, branches by the first alone; at some
    sampling ``settings`` only (``None``: all), ``leafed`` where chains may have leaves, as elsewhere it is another arm.
    ``served`` is how to build it: a ``decoder`` configuration or the name of a ``bundle``; ``None``: for comparison only."""

    name: str
    family: str
    play: Play
    settings: tuple[SamplingSettings, ...] | None = None
    served: dict[str, Any] | None = None
    leafed: bool = False

    def plays(self, settings: SamplingSettings) -> bool:
        """Tell whether the policy is replayed at these ``settings``."""
        return (self.settings is None or settings in self.settings) and (settings.read_off or not self.leafed)


class ReplayStudy:
    """Priced by a ``profile``, and policies for chains by those of ``others`` too. ``bundles``: folders of exported bundles by
    name; those that decide about something else than chains are left out."""

    def __init__(
        self,
        config: ReplayConfig,
        profile: LatencyProfile,
        bundles: Mapping[str, Path],
        others: Sequence[LatencyProfile] = (),
    ) -> None:
        self.config, self.clocks = config, [Clock(one) for one in (profile, *others)]
        self.arms = list(self._arms(bundles))

    @property
    def bundles(self) -> list[str]:
        """Names of the bundles that are replayed."""
        return [arm.served["bundle"] for arm in self.arms if arm.served is not None and "bundle" in arm.served]

    def run(self, texts: Iterable[tuple[str, RecordedText]]) -> Iterator[list[Rows]]:
        """Replay every text by every profile: rows of every arm, each with the text's split."""
        longest, clocks = max(self.config.gammas), self.clocks
        for split, text in texts:
            tables = [Rows() for _ in clocks]
            where: dict[str, Any] = {"split": split, "setting": text.settings.name, "prompt": text.prompt_id}
            where |= {"document": text.document, "slice": text.slice, "prompt_tokens": text.prompt_tokens}
            plain = names.PLAIN, names.PLAIN, [clock.plain(text) for clock in clocks]
            played = [plain, (ORACLE, ORACLE, [clock.oracle(text, longest) for clock in clocks])]
            arms = [arm for arm in self.arms if arm.plays(text.settings)]
            for arm in arms:
                try:
                    played.append((arm.name, arm.family, arm.play(text, clocks)))
                except BeyondRecordError as error:
                    warnings.warn(f"{arm.name} is not replayed: {error}", stacklevel=2)
            for name, family, decodes in played:
                for rows, one in zip(tables, decodes, strict=False):  # branches have one clock
                    rows.append(where | {"drafter": name, "family": family} | vars(one))
            yield tables

    def _arms(self, bundles: Mapping[str, Path]) -> Iterator[ReplayArm]:
        config, longest = self.config, max(self.config.gammas)

        def stopped(gamma: int | str, **controller: Any) -> dict[str, Any]:
            return chain(gamma, config.verifier, controller=controller)

        confidence = stopped(longest, kind=names.CONFIDENCE, epsilon="{epsilon}")
        entropy = stopped(longest, kind=names.ENTROPY, threshold="{threshold}")
        rules = [
            ArmRow("chain-{gamma}", names.CHAIN, stopped("{gamma}", kind="fixed"), each={"gamma": config.gammas}),
            ArmRow("confidence-{epsilon}", names.CONFIDENCE, confidence, each={"epsilon": config.epsilons}),
            ArmRow("entropy-{threshold}", names.ENTROPY, entropy, each={"threshold": config.thresholds}),
            ArmRow("{kind}", names.RULE, stopped(longest, kind="{kind}"), each={"kind": names.UNLEARNED}),
        ]
        rows = rows_of(rules, "")
        for preset, lengths in product((names.PEARL, names.WITHOUT_HRAD), config.branch_gammas):
            stage = {} if len(lengths) == 1 else {"draft_stage_gamma": lengths[0]}
            served = {"gamma": lengths[-1], "verifier": config.verifier}  # the one that texts were recorded under
            if not stage or preset != names.PEARL:  # which has no idle draft stage
                name = names.BranchArm(preset, tuple(lengths)).name
                rows.append(ArmRow(name, BRANCHES, {"preset": preset, **served, **stage}))
        folder = next((str(one.parent) for one in bundles.values()), "")
        rivals = [row for row in rows_of(config.rivals, folder) if set(bundles_of(row)) <= set(bundles)]
        for row in [*rows, *rivals, *(ArmRow(name, names.RULE, bundle=name) for name in bundles)]:
            yield from self._built(row, bundles)

    def _built(self, row: ArmRow, bundles: Mapping[str, Path]) -> Iterator[ReplayArm]:
        """Arms of a row; none of a bundle that decides about neither chains nor branches, or retains them a priori."""
        name = row.name
        bundle = None if row.bundle is None else read_bundle(bundles[row.bundle])
        preset = bundle is not None and name in names.BRANCH_PRESETS
        decoder = expanded(row.decoder if bundle is None else bundle.card["decoder"])  # type: ignore[arg-type]
        method, verifier = decoder.get("method", ""), decoder.get("verifier", self.config.verifier)
        if decoder.get("retention", POSTERIOR) != POSTERIOR or method not in PAIR_METHODS:
            return
        if bundle is None:
            controller = build_controller(decoder.get("controller") or default_controller(method))
        else:
            controller = CONTROLLERS[bundle.card["kind"]].from_bundle(bundle)
        settings = None if controller.contract is None else controller.contract.serving_range.sampling
        served: dict[str, Any] | None = {"bundle": row.bundle}
        if bundle is None:  # a configuration may name a bundle's folder: then it is not built elsewhere
            served = None if bundles_of(row) else {"decoder": row.decoder}
        if method == "branch_parallel":
            name = names.BranchArm(name, (int(decoder["gamma"]),)).name if preset else name
            config = parse_config(BranchDecoderConfig, decoder, name)
            play = partial(_branches, controller=controller, config=config, verifier=verifier)
            yield ReplayArm(name, BRANCHES, play, settings, served)
            return
        policy = configured_policy(decoder, controller, verifier)
        if policy is None:
            return
        name = names.BranchArm(name, (policy.depth,)).name if preset else name
        leafed = bundle is None and any(policy.leaves)
        yield ReplayArm(name, row.family, partial(_chains, policy=policy), settings, served, leafed)
        if isinstance(controller, EarlyStop | Grow | Survival) and not controller.asks:
            asked = replace(policy, controller=controller.asked_anyway())
            yield ReplayArm(f"{name}, {names.ASKED}", row.family, partial(_chains, policy=asked), settings)


def _chains(text: RecordedText, clocks: Sequence[Clock], policy: ChainPolicy) -> list[Decode]:
    rounds = list(replayed(text, policy))
    return [clock.policy(text, policy, rounds) for clock in clocks]


def _branches(text: RecordedText, clocks: Sequence[Clock], **how: Any) -> list[Decode]:
    return [clocks[0].branches(text, **how)]
