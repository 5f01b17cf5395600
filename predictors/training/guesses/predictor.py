"""How the target drafts for itself by one method: settings alone, chosen by prices, on a card."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from predictors.config import Checked, Count
from predictors.training.guess_table import GuessTable
from predictors.training.guesses.choice import choose
from predictors.training.predictor import Fitted, Materials

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


@dataclass(frozen=True)
class GuessPredictor(Checked):
    """Family ``guess``: the fastest recorded way of ``method`` over all sampling settings; ``bootstrap_replicates`` for the
    recorded intervals."""

    method: str
    bootstrap_replicates: Count = 2000
    seed: int = 0

    def fit(self, name: str, materials: Materials, logger: "Logger | None" = None) -> Fitted:
        """Price all ways of the method, and choose."""
        table = GuessTable.read(materials.guesses)
        chosen = choose(table, self.method, materials.profile, self.bootstrap_replicates, self.seed)
        worth = {row["setting"]: row["speedup"] for row in chosen.rows if row["way"] == chosen.way}
        card = {
            "kind": "fixed",
            "contract": table.manifest.contract,
            "decoder": chosen.way,
            "measured_quality": {"split": "validation", "priced_speedup": worth},
            "lineage": {"traces_sha256": table.manifest.content_hash, "profile_hash": materials.profile.profile_hash},
        }
        quality = {"method": self.method, "chosen": chosen.way, "rows": chosen.rows}
        metrics = {f"priced_speedup_{setting}".replace("=", ""): made["value"] for setting, made in worth.items()}
        return Fitted(card, {}, quality, metrics, sentence(chosen.way, worth))


def sentence(way: dict[str, Any], worth: dict[str, dict[str, float]]) -> str:
    """What was chosen and what it is worth."""
    options = ", ".join(f"{name} {value}" for name, value in way.items() if name != "method")
    speeds = ", ".join(f"{setting} {value['value']:.2f}x" for setting, value in worth.items())
    return f"{way['method']} ({options}): {speeds} plain decoding by the latency profile, validation prompts"
