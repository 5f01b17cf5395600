"""A challenger on trial: timed beside the champion, plain decoding and static chains, on documents that nothing was trained on.

Look 1 times prompts of the test share, every further look new ones of the reserve. Decodes of earlier looks are kept, so that
looks accumulate. Arms are paired by block at every sampling setting that challenger or champion was captured at.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.evidence.allocation import allocated, mix_of
from pipelines.evidence.ledger import Replayed
from pipelines.evidence.timed_blocks import Row
from pipelines.measuring.arm_rows import ArmRow, chain, expanded
from pipelines.measuring.names import CHAIN, PLAIN, PLAIN_FAMILY, TEST
from pipelines.promotion.candidate import calibration_of
from pipelines.promotion.evidence import Evidence, compared
from pipelines.promotion.names import CHAMPION, RESERVE
from pipelines.promotion.plan import Bounds, TrialConfig
from pipelines.prompt_table import Prompt, read_prompts
from predictors.bundle import bundle_hash, read_bundle


@dataclass(frozen=True)
class Look:
    """The ``number``-th look (from 1): its ``prompts`` with those of earlier looks, how many documents it leaves unopened, and
    the ``mix`` that gains are weighed by: of all test prompts."""

    number: int
    prompts: tuple[Prompt, ...]
    documents_left: int
    mix: Mapping[str, float] | None = None

    @staticmethod
    def of(
        number: int,
        folder: Path,
        config: TrialConfig,
        least: int = 0,
        sort: Callable[[list[Prompt]], list[Prompt]] = list,
    ) -> "Look":
        """Of the prompts below ``folder``, allocated to slices by their documents, at first at least ``least`` of each; ``sort``:
        which test prompts go first.

        Raises
        ------
        ValueError
            If there are no test prompts, or a further look finds no new document.
        """
        opened, before = ((look - 1) * config.reserve_prompts for look in (number, number - 1))
        known, reserve = read_prompts(folder, TEST), read_prompts(folder, RESERVE)
        if not known:
            raise ValueError(f"{folder} has no {TEST} prompts: there is nothing to try a bundle on. Draw some.")
        mix = mix_of(known)
        test = allocated(sort(known), mix, config.test_prompts, least)
        reserve = allocated(reserve, mix, len(reserve))
        seen = {prompt.document for prompt in (*test, *reserve[: max(before, 0)])}
        if number > 1 and not {prompt.document for prompt in reserve[before:opened]} - seen:
            raise ValueError(
                f"look {number} finds no new document among {len(reserve)} prompts of the {RESERVE}: documents exhausted. "
                "Add documents, or raise prompts.reserve, and draw again."
            )
        prompts = (*test, *reserve[:opened])
        left = {prompt.document for prompt in reserve[opened:]} - {prompt.document for prompt in prompts}
        return Look(number, prompts, len(left), mix)


def arms_of(config: TrialConfig, bundles: Mapping[str, Path]) -> list[ArmRow]:
    """Plain decoding, static chains, and ``bundles`` by arm: folders of the challenger and, if any, the champion."""
    rivals = [ArmRow(PLAIN, PLAIN_FAMILY, {"method": PLAIN})]
    rivals += [ArmRow(f"{CHAIN}-{{gamma}}", CHAIN, chain("{gamma}"), each={"gamma": config.gammas})]
    return expanded(rivals, "") + [ArmRow(name, name, bundle=str(folder.resolve())) for name, folder in bundles.items()]


def learned_documents(known: Iterable[Prompt], test: Iterable[Prompt], facts: Mapping[str, Any]) -> set[str]:
    """Documents of the prompts that controllers were fitted or chosen on, and those that a built-in pair was trained on, by the
    names that ``test`` prompts of them would have. ``facts`` is ``pair.json``; what a real pair was trained on is unknown.
    """
    of_pair = facts["corpus"]["trained_on"] if facts["source"] == "builtin" else []
    names = {f"{source}/{document}" for source in {prompt.source for prompt in test} for document in of_pair}
    return names | {prompt.document for prompt in known}


def evidence_of(
    who: tuple[str, str, Path],
    decodes: Sequence[Row],
    look: Look,
    bounds: Bounds,
    exactness: Mapping[str, bool],
    trained: Iterable[str],
    origin: Mapping[str, Any],
    champion: str | None = None,
    replayed: Replayed | None = None,
) -> Evidence:
    """What timed ``decodes`` and replay of their texts say of a bundle, the arm `CHALLENGER`, over `CHAMPION` among them if
    ``champion`` names its content. ``who``: pair, predictor, and the bundle's folder."""
    pair, predictor, bundle = who
    found = compared(decodes, bounds, None if champion is None else CHAMPION, look.mix, replayed)
    calibration = calibration_of(bundle)
    return Evidence(
        pair=pair,
        predictor=predictor,
        bundle_sha256=bundle_hash(bundle),
        champion=champion,
        exactness=dict(exactness),
        calibration_error=calibration.error,
        **vars(found),
        trained_documents=tuple(sorted(set(trained))),
        look=look.number,
        documents_left=look.documents_left,
        origin={**origin, "lineage": read_bundle(bundle).card.get("lineage")},
        exemption=calibration.exemption,
    )
