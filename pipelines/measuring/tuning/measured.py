"""What stage ``measure`` knows of candidates already.

An arm stands for a candidate if it is the same decoder: the same configuration, or a bundle of the same content. Names alone say
nothing: of two rules of one name one may draft up to 8 tokens, the other up to 12.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.evidence.ledger import Replayed
from pipelines.measuring.arm_rows import ArmRow, expanded
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import DECODES_FILE, FORESEEN, PROVENANCE
from pipelines.measuring.tables import read_decodes, read_foreseen
from pipelines.measuring.tuning.candidates import Candidate
from predictors.config import parse_config
from predictors.sampling import SamplingSettings
from runtime.presets import expanded as whole

SAME = ("pair_sha256", "serving")  # as here, or its times say nothing of these decoders
SAME_PARAMETERS = ("max_new_tokens", "threads")
HERE = "measured/"  # before the names of blocks


@dataclass(frozen=True)
class Measured:
    """``rows`` of decodes, and the ``arms`` that they are of; ``note``: why there are none. ``replayed``: what replay says of
    those of test prompts."""

    rows: Rows
    arms: tuple[ArmRow, ...] = ()
    note: str | None = None
    replayed: Replayed | None = None

    @staticmethod
    def read(folder: Path, inputs: Mapping[str, Any], bundles: Path, hashes: Mapping[str, str]) -> "Measured":
        """Of a device's ``folder``, if it was measured with the same ``inputs`` (pair, serving and parameters); of arms of
        ``bundles`` those whose content is that of ``hashes``."""
        if not (folder / DECODES_FILE).is_file():
            return Measured([], note=f"nothing is measured in {folder}")
        origin = json.loads((folder / PROVENANCE).read_text())
        there, here = origin["parameters"], inputs["parameters"]
        other = [name for name in SAME if origin[name] != inputs[name]]
        other += [name for name in SAME_PARAMETERS if there[name] != here[name]]
        if other:
            return Measured([], note=f"{folder} was measured with another {', '.join(other)}")
        given = [parse_config(ArmRow, row, f"{folder / PROVENANCE}: parameters.arms") for row in there["arms"]]
        arms = expanded(given, str(bundles))
        kept = [
            row for row in arms if row.bundle is None or origin[f"{row.bundle}_bundle_sha256"] == hashes.get(row.bundle)
        ]
        replayed = read_foreseen(folder / FORESEEN)
        return Measured(read_decodes(folder / DECODES_FILE), tuple(kept), replayed=replayed)

    def of(self, settings: SamplingSettings, some: Iterable[Candidate], split: str) -> Rows:
        """Decodes of candidates on the prompts of a split, as arms of their names."""
        names, wanted = self._names(some), asdict(settings) | {"split": split}
        return [
            row | {"arm": names[row["arm"]], "block": f"{HERE}{row['block']}"}
            for row in self.rows
            if row["arm"] in names and wanted.items() <= row.items()
        ]

    def foreseen(self, some: Iterable[Candidate]) -> Replayed | None:
        """What replay says of candidates on test prompts."""
        return None if self.replayed is None else self.replayed.named(self._names(some), HERE)

    def _names(self, some: Iterable[Candidate]) -> dict[str, str]:
        """Of the candidates, by the arm that stands for one."""
        arms = {one.name: next((row.name for row in self.arms if _same(row, one.served)), None) for one in some}
        return {arm: name for name, arm in arms.items() if arm is not None}


def _same(row: ArmRow, served: Mapping[str, Any]) -> bool:
    """Whether an arm is the decoder that is served so."""
    if row.hugging_face is not None or row.forward is not None or row.options:
        return False
    if row.decoder is None or "bundle" in served:
        return row.bundle is not None and row.bundle == served.get("bundle")
    return _complete(row.decoder) == _complete(served["decoder"])


def _complete(decoder: Mapping[str, Any]) -> dict[str, Any]:
    return {"controller": {"kind": "fixed"}} | whole(decoder)
