"""A replay written by hand: one sampling setting, two splits of four documents, policies of known speed."""

from pipelines.measuring.names import CHAIN, CONFIDENCE, PLAIN, PROVENANCE, RULE
from pipelines.measuring.tables import COUNTS, ORACLE, REPLAY_ROWS, REPLAYED, replayed_at, write_table
from pipelines.outputs import write_json

RATES = {
    PLAIN: (PLAIN, 100.0),
    "chain-1": (CHAIN, 150.0),
    "chain-3": (CHAIN, 160.0),
    "confidence-0.4": (CONFIDENCE, 164.0),
    "entropy": (RULE, 168.0),
    ORACLE: (ORACLE, 200.0),
}


def write_replay(folder, cost_ratio: float | None = None) -> None:
    """The stage's output; with ``cost_ratio`` also what rules reach there: as much as the static chain."""
    write_table(folder / REPLAYED, _rows(RATES), REPLAY_ROWS)
    if cost_ratio is not None:
        level = {name: (family, 160.0 if family == RULE else rate) for name, (family, rate) in RATES.items()}
        write_table(folder / replayed_at(cost_ratio), _rows(level), REPLAY_ROWS)
    elsewhere = [] if cost_ratio is None else [cost_ratio]
    record = {"device": "toy-1c", "profile_hash": "none", "cost_ratio": 6.5, "cost_ratios": elsewhere}
    write_json(folder / PROVENANCE, record)


def _rows(rates) -> list[dict]:
    rows = []
    for split in ("validation", "test"):
        for number in range(6):
            place = {"prompt": f"p{number}", "document": f"d{number // 2}", "slice": ("code", "prose")[number % 2]}
            for name, (family, rate) in rates.items():
                seconds = 60 / rate * (1 + 0.2 * number)
                row = {"split": split, "setting": "T=0", "drafter": name, "family": family, "prompt_tokens": 20}
                rows.append({**place, **row, "tokens": 60.0, **dict.fromkeys(COUNTS, 20.0), "seconds": seconds})
    return rows
