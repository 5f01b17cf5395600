"""The tables of the pages in docs are those of the studies' own files in docs/studies."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "verification.md").read_text()
STUDY = json.loads((DOCS / "studies/verifiers.json").read_text())
REPORT = (DOCS / "studies/verifiers.md").read_text()
COSTS = json.loads((DOCS / "studies/verdict_cost_cpu.json").read_text())
SHAPES = {  # name here -> name of the study
    "chain of 4": "chain-4",
    "chain of 8": "chain-8",
    "4 paths of 4": "iid-4x4",
    "4 paths of 8": "iid-4x8",
    "4 paths of 4 after a trunk of 4": "delayed-4.4.4",
    "children (4, 2, 2, 1)": "distinct-4.2.2.1",
    "11 paths of 8": "iid-11x8",
}


def rows(text: str, header: str) -> list[list[str]]:
    """Cells of the first table whose header line starts with ``header``, backquotes left out."""
    lines = text[text.index(f"\n{header}") :].strip().split("\n\n")[0].splitlines()
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]]


def shown(interval: dict, digits: int) -> str:
    value, low, high = (f"{interval[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} ({low}–{high})"


def test_best_shape_of_each_rule():
    speeds = {row["name"]: row for row in STUDY["timing"]["pooled"]}
    expected = []
    for rule in STUDY["quality"]["pooled"]:
        speed = speeds[rule["name"]]
        expected.append(
            [
                *(rule["name"], shown(rule["expected"], 2), shown(rule["decoded"], 2)),
                *(shown(speed["tokens_per_second"], 0), shown(speed["speedup"], 2)),
                f"{100 * speed['verify_share']['value']:.1f} %",
            ]
        )
    assert rows(PAGE, "| rule | block efficiency, exact")[1:] == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_rules_on_the_same_trees(shape):
    (header, *page), (names, *study) = (
        rows(PAGE, "| drafted |"),
        rows(REPORT[REPORT.index("on the same trees") :], "| shape |"),
    )
    cells = next(dict(zip(header, row, strict=True)) for row in page if row[0] == shape)
    known = next(dict(zip(names, row, strict=True)) for row in study if row[0] == SHAPES[shape])
    filled = {rule: cell for rule, cell in cells.items() if cell and rule != "drafted"}
    assert filled
    for rule, cell in filled.items():
        assert cell == known[rule]


def test_what_a_verdict_costs():
    expected = [
        [row["tree"], row["draws"], row["verifier"], f"{row['ratio']:.2f}", f"{row['low']:.2f}–{row['high']:.2f}"]
        for row in COSTS["rows"]
    ]
    assert rows(PAGE, "| tree | draws |")[1:] == expected


def test_the_page_names_the_run_it_tells_of():
    origin, quality = STUDY["provenance"], STUDY["quality"]
    assert re.search(rf"\b{quality['roots']}\b\D+\b{quality['documents']}\b", PAGE)
    assert f"commit `{origin['commit'][:12]}`" in PAGE and origin["date"] in PAGE


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")]


def test_stop_rules_are_the_studys():
    page, study = (DOCS / "stopping.md").read_text(), (DOCS / "studies/stopping.md").read_text()
    roots = table_lines((DOCS / "studies/target_roots.md").read_text())
    greedy, sampled = (table_lines(study[study.index(f"## {name}") :]) for name in ("T=0", "T=1"))
    parts = page.split("At temperature 1, where texts differ")
    sampled_part, forks = parts[1].split("## Wide and narrow trees")
    forks, own_roots = forks.split("## Several roots")
    assert set(table_lines(parts[0]) + table_lines(forks)) <= set(greedy[: -len(sampled)])
    assert set(table_lines(sampled_part)) <= set(sampled) and table_lines(own_roots) == roots
    assert len(table_lines(page)) > 35
    record = json.loads((DOCS / "studies/stopping.json").read_text())
    assert record["provenance"]["commit"][:12] in study and record["provenance"]["date"] in study


def test_drafting_without_a_draft_model_is_the_studys():
    page, study = (DOCS / "self_drafting.md").read_text(), (DOCS / "studies/self_drafting.md").read_text()
    greedy, sampled = (table_lines(study[study.index(f"## {name}") :]) for name in ("T=0", "T=0.5"))
    greedy_part, sampled_part = page.split("## Children, depth")[1].split("At temperature 0.5")
    assert set(table_lines(greedy_part)) <= set(greedy[: -len(sampled)]) and set(table_lines(sampled_part)) <= set(
        sampled
    )
    assert len(table_lines(greedy_part)) > 20
    record = json.loads((DOCS / "studies/self_drafting.json").read_text())
    assert record["provenance"]["commit"][:12] in study and record["provenance"]["date"] in study


def test_how_many_traces_are_enough_is_the_studys():
    page, study = (DOCS / "enough.md").read_text(), (DOCS / "studies/enough.md").read_text()
    record = json.loads((DOCS / "studies/enough.json").read_text())
    assert set(table_lines(page)) <= set(table_lines(study))
    sizes = {row[0]: row for row in rows(page, "| controller | enough |")[1:]}
    assert set(sizes) == set(record["curves"])
    for name, curve in record["curves"].items():
        point = curve["points"][curve["enough"]]
        expected = [f"{100 * point['share']:.4g}%", str(point["documents"]), str(point["rows"])]
        assert sizes[name][1:4] == expected and sizes[name][6] == f"{record['present'][name]:.1%}"
        lost = next(point["losses"] for point in curve["points"] if point["share"] == 0.5)
        assert all(
            f"{lost[metric]['value']:.3f}" in page
            for metric in lost
            if metric.endswith("AUC") and name != "early_stop-2"
        )
    features = {row[0]: row for row in rows(page, "| controller | reads all |")[1:]}
    for name, layers in record["layers"].items():
        point = layers["points"][layers["cheapest"]]
        assert features[name][3:5] == [point["variant"], str(point["bytes"])]
    for origin in record["provenance"].values():
        assert origin["commit"][:12] in study and origin["date"] in study


def test_parameters_point_to_the_page_that_judges_them():
    assert "docs/enough.md" in (DOCS.parent / "params.yaml").read_text()


def test_several_roots_are_marked_lossy():
    record = json.loads((DOCS / "studies/target_roots.json").read_text())
    assert {row["arm"]: row["lossy"] for row in record["arms"]} == {
        "target alone": False,
        "W = 1": False,
        "W = 2": True,
        "W = 3": True,
    }
