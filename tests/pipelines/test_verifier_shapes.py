"""Shapes of the comparison: their names, and the rules that are compared on them."""

from pipelines.measuring.verifiers.shapes import shapes_of
from predictors.sampling import SamplingSettings
from runtime.verification import VERIFIERS
from tests.pipelines.toy_bench import CHAIN, DISTINCT, SHAPES


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
