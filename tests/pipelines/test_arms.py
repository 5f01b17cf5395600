"""The benchmark's arms: rows that stand for several, equal counting on both sides, no state left behind, exact text."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.measuring import arms
from pipelines.measuring.arm_rows import ArmRow, expanded
from pipelines.measuring.arms import ArmBuilder, bundles_of
from pipelines.measuring.exactness import exactness_rows
from pipelines.parameters import load_parameters, read_section
from pipelines.stages.measure import MeasureConfig
from predictors.config import parse_config
from predictors.sampling import SamplingSettings
from runtime import ModelPair, build_decoder
from tests.bundles import random_bundle
from tests.toys import tiny_llama

SAMPLED = SamplingSettings(1.0)
CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}, "verifier": "block"}
DECODERS = {
    "plain": {"method": "autoregressive"},
    "chain": CHAIN,
    "confidence": {**CHAIN, "controller": {"kind": "confidence", "epsilon": 0.3}},
    "entropy": {**CHAIN, "controller": {"kind": "entropy"}},
    "pearl": {"preset": "pearl", "gamma": 2, "overlap": "none"},
}


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1, layers=1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_both_sides_count_tokens_up_to_the_first_end_of_sequence(temperature):
    """Tiny vocabulary, so that every text ends early; Hugging Face and ours cut alike."""
    target, draft = (tiny_llama(vocabulary_size=4, seed=s, eos_token_id=2, pad_token_id=2) for s in (0, 1))
    pair = ModelPair(target, draft)
    runners = {name: arms.decoder_arm(build_decoder(pair, config), 40) for name, config in DECODERS.items()}
    runners |= {"hf": arms.hugging_face_arm(target, None, 40), "assisted": arms.hugging_face_arm(target, draft, 40)}
    ended = 0
    for seed in range(4):
        prompt = [seed % 2, 1, 3, seed % 4]
        runs = {name: arm(prompt, SamplingSettings(temperature), seed).tokens for name, arm in runners.items()}
        for tokens in runs.values():
            assert 2 not in tokens[:-1]
            assert len(tokens) == 40 or tokens[-1] == 2
            ended += tokens[-1] == 2
        if temperature == 0:
            assert len({tuple(tokens) for tokens in runs.values()}) == 1
    assert temperature == 0 or ended


def test_assisted_generation_leaves_no_state_behind(pair):
    target, draft = pair.target.model, pair.draft.model
    before = draft.generation_config.to_dict()
    assisted = arms.hugging_face_arm(target, draft, 20)
    draft.generation_config.num_assistant_tokens_schedule = "heuristic"  # the schedule that writes back
    draft.generation_config.num_assistant_tokens = 5
    changed = draft.generation_config.to_dict()
    first = assisted([1, 2, 3], SAMPLED, 0).tokens
    assert draft.generation_config.to_dict() == changed
    assisted([4, 5, 6], SAMPLED, 1)
    assert assisted([1, 2, 3], SAMPLED, 0).tokens == first
    draft.generation_config.num_assistant_tokens_schedule = None
    draft.generation_config.num_assistant_tokens = None
    assert draft.generation_config.to_dict() == before


def test_penalties_of_the_models_own_are_no_part_of_the_comparison(pair):
    target, draft = tiny_llama(seed=0), tiny_llama(seed=1, layers=1)
    target.generation_config.no_repeat_ngram_size = 1
    for arm in (arms.hugging_face_arm(target, None, 20), arms.hugging_face_arm(target, draft, 20)):
        ours = arms.decoder_arm(build_decoder(pair, DECODERS["plain"]), 20)
        assert arm([1, 2, 3], SamplingSettings(0.0), 0).tokens == ours([1, 2, 3], SamplingSettings(0.0), 0).tokens
    assert target.generation_config.no_repeat_ngram_size == 1


@pytest.mark.parametrize("size", [24, 40])
def test_assisted_generation_takes_a_draft_with_embeddings_of_another_size(size):
    """Such a pair is one of different tokenizers to Hugging Face, which then wants both, and fails when it samples."""
    target, draft = tiny_llama(seed=0), tiny_llama(vocabulary_size=size, seed=1, layers=1)
    assisted, alone = arms.hugging_face_arm(target, draft, 20), arms.hugging_face_arm(target, None, 20)
    for settings in (SamplingSettings(0.0), SAMPLED):
        assert len(assisted([1, 2, 3], settings, 0).tokens) == 20
    assert assisted([1, 2, 3], SamplingSettings(0.0), 0).tokens == alone([1, 2, 3], SamplingSettings(0.0), 0).tokens
    assert draft.config.vocab_size == size


def test_exactness_check_passes_for_our_decoders_and_reports_where_others_differ(pair, tmp_path):
    rows = [ArmRow(name, "ours", decoder=config) for name, config in DECODERS.items()]
    for kind in ("hrad", "length"):
        random_bundle(tmp_path / kind, pair, gamma=3, kind=kind)
        rows.append(ArmRow(kind, "learned", bundle=kind))
    other = ModelPair(tiny_llama(seed=2), None)  # texts of another target
    built = ArmBuilder(pair, tmp_path, 12).build(rows)
    wrong = ArmBuilder(other, tmp_path, 12).build([ArmRow("wrong", "ours", decoder=DECODERS["plain"])])
    found = exactness_rows(pair, [[1, 2, 3], [4, 5]], built | wrong, 12)
    assert [row["arm"] for row in found] == [*DECODERS, "hrad", "length", "wrong"]
    assert all(row["exact_float32"] and row["differs"] == [None, None] for row in found[:-1])
    assert not found[-1]["exact_float32"]


@pytest.mark.parametrize(("options", "cache"), [(None, None), ({"cache_implementation": "static"}, "static")])
def test_hugging_face_is_asked_for_the_cache_of_the_row(pair, tmp_path, monkeypatch, options, cache):
    target, asked = pair.target.model, []
    generate = target.generate

    def watched(*args, **more):
        asked.append(more["generation_config"].cache_implementation)
        return generate(*args, **more)

    monkeypatch.setattr(target, "generate", watched)
    row = ArmRow("theirs", "hugging_face", hugging_face="generate", options=options)
    ours = arms.decoder_arm(build_decoder(pair, DECODERS["plain"]), 8)
    arm = ArmBuilder(pair, tmp_path, 8).build([row])["theirs"]
    greedy = SamplingSettings(0.0)
    assert arm.run([1, 2, 3], greedy, 0).tokens == ours([1, 2, 3], greedy, 0).tokens
    assert asked == [cache]


TEMPLATE = {"method": "speculative", "drafter": {"kind": "chain", "gamma": "{gamma}"}, "verifier": "block"}


def test_every_combination_is_an_arm_whose_values_keep_their_type():
    each = {"width": [2, 0.5], "depth": [[3, 1]], "model": ["a", "b"]}
    decoder = {"w": "{width}", "d": "{depth}", "controller": {"bundle": "{bundles}/{model}"}}
    rows = expanded([ArmRow("fork-{width}.{depth} {model}", "fork", decoder=decoder, each=each)], "place")
    assert [row.name for row in rows] == ["fork-2.3.1 a", "fork-2.3.1 b", "fork-0.5.3.1 a", "fork-0.5.3.1 b"]
    assert rows[3].decoder == {"w": 0.5, "d": [3, 1], "controller": {"bundle": "place/b"}}
    assert decoder["w"] == "{width}", "the row itself stays as it is"


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
        expanded([ArmRow("a", "f", decoder=TEMPLATE)], "")
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
    theirs = {"hf": "generate", "assisted": "assisted", "lookup": "prompt_lookup"}
    rows = [ArmRow(name, "hugging_face", hugging_face=kind) for name, kind in theirs.items()]
    rows[2] = replace(rows[2], options={"prompt_lookup_num_tokens": 3})
    rows += [ArmRow("plain", "plain", decoder=DECODERS["plain"]), ArmRow("left out", "rule", bundle="nowhere")]
    rows += expanded([ArmRow("chain-{gamma}", "chain", decoder=TEMPLATE, each={"gamma": [2]})], "")
    builder = ArmBuilder(pair, tmp_path, 6)
    arms = builder.build(rows)
    assert list(arms) == [*theirs, "plain", "chain-2"] and builder.missing == ["nowhere"]
    texts = {name: tuple(arm.run([1, 2, 3], SamplingSettings(0.0), 0).tokens) for name, arm in arms.items()}
    assert len(set(texts.values())) == 1 and len(texts["plain"]) == 6
    assert arms["chain-2"].verifier == "block" and arms["hf"].decoder is None


def test_an_arm_over_hugging_faces_forward_only_where_ours_is_another(pair, tmp_path):
    row = ArmRow("hf forward", "plain", decoder={"method": "autoregressive"}, forward="hugging_face")
    general = ModelPair(pair.target.model, forward="hugging_face")
    assert list(ArmBuilder(pair, tmp_path, 6).build([row])) == ["hf forward"]
    assert not ArmBuilder(general, tmp_path, 6).build([row])
