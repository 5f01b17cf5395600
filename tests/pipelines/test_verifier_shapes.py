"""Shapes of the comparison: their names, and the rules that are compared on them."""

import re
from pathlib import Path

from pipelines.measuring.arm_rows import expanded
from pipelines.measuring.arms import ArmBuilder
from pipelines.measuring.exactness import exactness_rows
from pipelines.measuring.measurement import MeasureConfig
from pipelines.measuring.tables import BUNDLE, FAMILIES, STATIC_TREE
from pipelines.measuring.verifiers.shapes import VerifierConfig, shapes_of
from pipelines.parameters import load_parameters
from predictors.sampling import SamplingSettings
from runtime import ModelPair
from runtime.verification import VERIFIERS
from tests.pipelines.toy_bench import CHAIN, DISTINCT, SHAPES
from tests.toys import tiny_llama

SELECTED = ("nss", "naive_tree", "spectr", "specinfer", "khisti", "traversal", "block")


def test_every_rule_is_compared_on_the_shapes_it_is_lossless_for():
    shapes = {shape.name: shape for shape in shapes_of(SHAPES)}
    assert list(shapes) == ["chain-3", "iid-3x2", "delayed-2.1.2", "distinct-3.2"]
    assert shapes["chain-3"].verifiers == ("tokenwise", "block")
    assert set(shapes["iid-3x2"].verifiers) == {
        *("traversal", "nss", "naive_tree", "spectr", "khisti", "specinfer", "hsd_multi_draft")
    }
    assert set(shapes["distinct-3.2"].verifiers) == {"traversal", "nss", "naive_tree", "rrs_without_replacement"}
    assert {v for shape in shapes.values() for v in shape.verifiers} | {"hsd", "match"} == set(VERIFIERS)


def test_options_beyond_the_shape_are_part_of_its_name():
    entries = [CHAIN, {**CHAIN, "draft_temperature": 0.5}, DISTINCT, {**DISTINCT, "candidates": "top_k"}]
    entries += [{"kind": "multi_candidate", "config": [1, 2], "roots": "target"}]
    names = [shape.name for shape in shapes_of(entries)]
    assert names[:2] == ["chain-3", "chain-3, draft_temperature 0.5"]
    assert names[2:] == ["distinct-3.2", "distinct-3.2, candidates top_k", "distinct-1.2, roots target"]


def test_setting_names():
    assert SamplingSettings(0.2).name == "T=0.2"
    assert SamplingSettings(1.0, top_p=0.9).name == "T=1, top-p 0.9"


def test_every_shape_and_rule_is_an_arm_of_the_measurement():
    """By its name and with the shape's own drafter; a static chain verified by block is the arm chain-γ."""
    rules = load_parameters(VerifierConfig, "pystdlib", "verifiers", Path("params.yaml"))
    rows = {
        row.name: row
        for row in expanded(load_parameters(MeasureConfig, "pystdlib", "measure", Path("params.yaml")).arms, "")
    }
    timed = {name for name, row in rows.items() if row.family.split()[0] in FAMILIES}
    named = set()
    for shape in shapes_of(rules.drafters):
        for rule in shape.verifiers:
            family, name = (
                ("chain", shape.name) if rule == "block" else (f"{shape.family} {rule}", f"{shape.name} {rule}")
            )
            decoder = {"method": "speculative", "drafter": shape.drafter, "verifier": rule}
            assert (rows[name].family, rows[name].decoder) == (family, decoder)
            named.add(name)
    others = timed - named
    assert all(re.fullmatch(r"chain-\d+", name) for name in others), others


def test_compared_arms_are_timed_on_the_same_prompts():
    rows = expanded(load_parameters(MeasureConfig, "pystdlib", "measure", Path("params.yaml")).arms, "")
    for beside in ("chain-4 tokenwise", "delayed_tree-nss"):
        assert beside in {row.name for row in rows}
    rotating = {row.name: row.beside for row in rows if " " in row.family and row.family.split()[0] in FAMILIES}
    assert set(rotating.values()) == {None, "chain-4 tokenwise"}
    assert [name for name, beside in rotating.items() if beside is None] == ["chain-4 tokenwise"]
    assert {row.beside for row in rows if row.family in ("selector", "static tree")} == {"delayed_tree-nss"}
    assert {row.name for row in rows if row.static_of} == {f"{STATIC_TREE}{rule}" for rule in SELECTED}
    assert {row.bundle for row in rows if row.family == "selector"} == {f"{BUNDLE}{rule}" for rule in SELECTED}


def test_every_rule_writes_the_targets_own_greedy_text(tmp_path):
    """What the measurement checks of its arms, on models that disagree; the draft's own text is another one."""
    target, draft = tiny_llama(32, seed=0), tiny_llama(32, seed=1, layers=1)
    rows = expanded(load_parameters(MeasureConfig, "pystdlib", "measure", Path("params.yaml")).arms, "")
    rows = [row for row in rows if " " in row.family and row.family.split()[0] in FAMILIES]
    arms = ArmBuilder(ModelPair(target, draft), tmp_path, 12).build(rows)
    assert len(arms) == 19
    exact = {
        row["arm"]: row["exact_float32"] for row in exactness_rows(ModelPair(target, draft), [[1, 2, 3]], arms, 12)
    }
    assert exact == dict.fromkeys(arms, True)
    wrong = exactness_rows(ModelPair(draft, target), [[1, 2, 3]], arms, 12)
    assert not any(row["exact_float32"] for row in wrong)
