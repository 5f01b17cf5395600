"""The card of a bundle that holds a calibrated head: what it is, what it is worth and why it was chosen."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from predictors.latency.serving import KEY

if TYPE_CHECKING:
    from pipelines.head_folder import SavedHead

KINDS = {
    "classes": "hrad",
    "length": "length",
}  # controllers by what their head predicts (`predictors.training.target`)


def build_card(
    head: "SavedHead", record: dict[str, Any], selection: dict[str, Any], decoder: dict[str, Any]
) -> dict[str, Any]:
    """The bundle's card (`predictors.bundle`, `predictors.controllers.learned`): a function of file contents only, and of the
    configuration of its ``decoder``."""
    test = record["test"]
    known = (
        "accuracy",
        "mean_absolute_error",
        "macro_f1",
        "macro_auc",
        "macro_auc_interval",
        "auc",
        "nll",
        "brier",
        "ece",
    )
    quality = [name for name in known if name in test["metrics"]["head"]]
    return {
        "kind": KINDS[head.target.name],
        "contract": head.contract.to_json(),
        "feature_spec": asdict(head.spec),
        "calibration": record["calibration"],
        "thresholds": record["thresholds"],
        "decoder": decoder,
        "measured_quality": {
            "split": "test",
            "rows": record["rows"]["test"],
            "documents": record["documents"]["test"],
            "draft_cost": record["draft_cost"],
            "metrics": {name: test["metrics"]["head"][name] for name in quality},
            "decision": test["decision"],
            "gain_over_best_static": test["gain_over_best_static"]["head"],
        },
        "selection": selection,
        "lineage": {
            name: record[name] for name in ("head_sha256", "labels_sha256", "traces_sha256", "contract_sha256")
        },
        **{name: record[name] for name in (KEY,) if name in record},
    }


def selection(chosen: str, values: dict[str, float], records: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Why ``chosen`` was exported, for the card."""
    others = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if name != chosen)
    return {
        "predictor": chosen,
        "feature_set": records[chosen]["feature_set"],
        "criterion": "tokens per target-pass equivalent on validation rows",
        "draft_cost": records[chosen]["draft_cost"],
        "validation_values": values,
        "best_static_value": records[chosen]["validation"]["decision"]["best_static"],
        "reason": f"{chosen} decides best on validation rows: {values[chosen]:.4f} tokens per target-pass equivalent"
        + (f" against {others}." if others else "."),
    }
