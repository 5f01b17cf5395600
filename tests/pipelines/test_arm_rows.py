"""The table of arms: rows that stand for several arms, what they refuse, and the arms that become of them."""

from pathlib import Path

import pytest

from pipelines.measuring.arm_rows import ArmRow, expanded
from pipelines.measuring.arms import ArmBuilder, bundles_of
from pipelines.measuring.measurement import MeasureConfig
from pipelines.parameters import load_parameters, read_section
from predictors.config import parse_config
from predictors.sampling import SamplingSettings
from runtime import ModelPair
from tests.toys import tiny_llama

CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": "{gamma}"}, "verifier": "block"}


@pytest.fixture(scope="module")
def pair():
    return ModelPair(target=tiny_llama(32, seed=0, layers=2), draft=tiny_llama(32, seed=1, layers=1))


def test_each_fills_names_and_decoders_and_keeps_the_values_type():
    rows = expanded([ArmRow("chain-{gamma}", "chain", decoder=CHAIN, each={"gamma": [2, 4]})], "folder")
    assert [row.name for row in rows] == ["chain-2", "chain-4"]
    assert [row.decoder["drafter"]["gamma"] for row in rows] == [2, 4]
    assert CHAIN["drafter"]["gamma"] == "{gamma}", "the row itself stays as it is"


def test_every_combination_is_an_arm():
    row = ArmRow(
        "fork-{width}.{depth} {model}",
        "fork",
        decoder={"w": "{width}", "controller": {"bundle": "{bundles}/{model}"}},
        each={"width": [2, 4], "depth": [3], "model": ["a", "b"]},
    )
    rows = expanded([row], "place")
    assert [row.name for row in rows] == ["fork-2.3 a", "fork-2.3 b", "fork-4.3 a", "fork-4.3 b"]
    assert rows[3].decoder == {"w": 4, "controller": {"bundle": "place/b"}}


def test_numbers_and_lists_in_names_are_brief():
    row = ArmRow("x-{value}", "x", decoder={"v": "{value}"}, each={"value": [0.1, [4, 2, 1], 3]})
    assert [one.name for one in expanded([row], "")] == ["x-0.1", "x-4.2.1", "x-3"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, "must have one of .*, got none"),
        ({"hugging_face": "magic"}, "one of generate, assisted, prompt_lookup, got 'magic'"),
        ({"bundle": "b", "choose": True}, "chosen when it was exported"),
        ({"decoder": {}, "forward": "mine"}, "hugging_face or left out, got 'mine'"),
    ],
)
def test_rows_that_cannot_be_meant_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        parse_config(ArmRow, {"name": "n", "family": "f", **change}, "here")


def test_a_placeholder_needs_a_value_and_a_name_is_given_once():
    with pytest.raises(ValueError, match=r"\{gamma\} has no value"):
        expanded([ArmRow("a", "f", decoder=CHAIN)], "")
    with pytest.raises(ValueError, match="arms a are given twice"):
        expanded([ArmRow("a", "f", decoder={}), ArmRow("a", "g", decoder={})], "")


def test_the_table_of_the_parameter_file_can_be_built(pair, tmp_path):
    """All but what needs an exported bundle; bundles are those that are fitted."""
    config = load_parameters(MeasureConfig, "smollm2", "measure", Path("params.yaml"))
    rows = expanded(config.arms, str(tmp_path))
    builder = ArmBuilder(pair, tmp_path, 8)
    arms = builder.build(rows)
    left = {row.name for row in rows} - set(arms)
    assert left == {row.name for row in rows if bundles_of(row)}
    assert {name.removesuffix("-4") for name in left} == set(builder.missing)
    assert set(builder.missing) <= set(read_section("smollm2", "fit", Path("params.yaml")))
    assert {"autoregressive", "hf_assisted", "chain-4", "pearl-4"} <= set(arms)


def test_arms_decode_the_target_text(pair, tmp_path):
    rows = [
        ArmRow("plain", "plain", decoder={"method": "autoregressive"}),
        ArmRow("hf", "hugging_face", hugging_face="generate"),
        ArmRow("assisted", "hugging_face", hugging_face="assisted"),
        ArmRow("lookup", "hugging_face", hugging_face="prompt_lookup", options={"prompt_lookup_num_tokens": 3}),
        *expanded([ArmRow("chain-{gamma}", "chain", decoder=CHAIN, each={"gamma": [2]})], ""),
        ArmRow("left out", "rule", bundle="nowhere"),
    ]
    builder = ArmBuilder(pair, tmp_path, 6)
    arms = builder.build(rows)
    assert list(arms) == ["plain", "hf", "assisted", "lookup", "chain-2"] and builder.missing == ["nowhere"]
    texts = {name: tuple(arm.run([1, 2, 3], SamplingSettings(0.0), 0).tokens) for name, arm in arms.items()}
    assert len(set(texts.values())) == 1 and len(texts["plain"]) == 6
    assert [arm.verifier for arm in arms.values()][-1] == "block" and arms["hf"].decoder is None


def test_an_arm_over_hugging_faces_forward_only_where_ours_is_another(pair, tmp_path):
    row = ArmRow("hf forward", "plain", decoder={"method": "autoregressive"}, forward="hugging_face")
    general = ModelPair(pair.target.model, forward="hugging_face")
    assert list(ArmBuilder(pair, tmp_path, 6).build([row])) == ["hf forward"]
    assert not ArmBuilder(general, tmp_path, 6).build([row])
