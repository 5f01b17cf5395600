import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from tqdm import tqdm

from pipelines import verifiers
from pipelines.measuring.measurement_log import Blocks, MeasurementLog
from pipelines.measuring.names import CHOICES
from pipelines.measuring.tables import ACCEPTANCE, ROOTS
from pipelines.measuring.verifiers import roots as roots_module
from pipelines.measuring.verifiers.roots import (
    MatchedRoots,
    acceptance_rows,
    compare,
    decoder_of,
    draw_trees,
    expected_rows,
)
from pipelines.measuring.verifiers.shapes import AcceptanceConfig, VerifierConfig, shapes_of
from pipelines.parameters import load_parameters
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.verification import VERIFIERS
from runtime.verification.acceptance import acceptance_rate
from tests.pipelines.toy_bench import CHAIN, DISTINCT, IID, SHAPES, toy_bench, toy_prompts
from tests.toys import tiny_llama

VOCABULARY = 8
SAMPLING = SamplingSettings(temperature=1.0)
CONFIG = VerifierConfig(
    drafters=(CHAIN, {"kind": "chain", "gamma": 2}, IID, DISTINCT),
    settings=(SAMPLING, SamplingSettings(temperature=1.0, top_p=0.9)),
    acceptance=AcceptanceConfig(k=2, depth=2, draws=2, lists=2),
    root_spacing=4,
    validation_prompts=1,
    test_prompts=2,
    threads=1,
)


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(VOCABULARY, seed=0), tiny_llama(VOCABULARY, seed=1, layers=1))


def study(pair, path, config=CONFIG):
    """The blocks of a comparison, and a function that makes it."""
    counts = {"validation": config.validation_prompts, "test": config.test_prompts}
    splits = {split: toy_prompts(count, split, VOCABULARY) for split, count in counts.items()}
    blocks = Blocks(MeasurementLog(path / "log.jsonl", "f"), tqdm(file=StringIO()), config.max_minutes)
    return blocks, lambda: compare(pair, config, splits, blocks)


def a_root(pair, index=1):
    return list(MatchedRoots(pair, 4, 2, 4, seed=0).roots(toy_prompts(1, vocabulary=VOCABULARY)[0], SAMPLING))[index]


def test_expectation_is_one_plus_the_laws_own_averaged_over_the_trees(pair):
    root, shapes = a_root(pair), shapes_of(SHAPES)
    decoders = {shape.name: decoder_of(pair, shape) for shape in shapes}
    rows = expected_rows(decoders, shapes, root, trees=3)
    assert len(rows) == 2 + 7 + 7 + 4
    for row in rows:
        (shape,) = [shape for shape in shapes if shape.name == row["drafter"]]
        values = []
        for evidence in draw_trees(decoders[shape.name], root, shape.depth, 3):
            law = VERIFIERS[row["verifier"]](evidence.tree, evidence.target_probs)
            values.append(1 + sum(float(p) * d for p, d in zip(law.stop, law.depths, strict=True)))
        assert row["expected"] == pytest.approx(np.mean(values))
        assert 1 <= row["expected"] <= 1 + shape.depth


def test_all_rules_and_all_shapes_see_the_same_draws(pair):
    root = a_root(pair)
    for entry in SHAPES:
        (shape,) = shapes_of([entry])
        drawn = [draw_trees(decoder_of(pair, shape, rule), root, shape.depth, 2) for rule in shape.verifiers]
        for others in drawn[1:]:
            for one, other in zip(drawn[0], others, strict=True):
                assert one.tree.token_list == other.tree.token_list
                assert torch.equal(one.tree.draft_probs, other.tree.draft_probs)
                assert torch.equal(one.target_probs, other.target_probs)
    first = {s.name: draw_trees(decoder_of(pair, s), root, s.depth, 1)[0].target_probs[0] for s in shapes_of(SHAPES)}
    for law in first.values():  # the prefill token is the same, so every shape drafts from the same context
        torch.testing.assert_close(law, first["chain-3"], rtol=1e-4, atol=1e-5)


def test_roots_lie_along_the_targets_own_text_and_inside_the_context(pair):
    prompt = toy_prompts(1, vocabulary=VOCABULARY)[0]
    plain = build_decoder(pair, {"method": "autoregressive"})
    roots = list(MatchedRoots(pair, 4, 3, 4, seed=0).roots(prompt, SAMPLING))
    assert [len(root.context) - len(prompt.tokens) for root in roots] == [0, 4, 8]
    assert all(root.context == roots[-1].context[: len(root.context)] for root in roots)
    assert len({root.seed for root in roots}) == 3
    deep = MatchedRoots(pair, 4, 3, plain.context_limit - len(prompt.tokens) - 2, seed=0)
    assert [root.index for root in deep.roots(prompt, SAMPLING)] == [0]


def test_text_that_ends_has_no_roots_beyond_its_end():
    eos = {"eos_token_id": 2, "pad_token_id": 2}
    pair = ModelPair(tiny_llama(4, seed=0, **eos), tiny_llama(4, seed=1, **eos))
    counts = [
        len(list(MatchedRoots(pair, 3, 4, 3, seed=seed).roots(toy_prompts(1, vocabulary=4)[0], SAMPLING)))
        for seed in range(6)
    ]
    assert min(counts) < 4
    for seed in range(6):
        for root in MatchedRoots(pair, 3, 4, 3, seed=seed).roots(toy_prompts(1, vocabulary=4)[0], SAMPLING):
            assert 2 not in root.context[5:]


@pytest.mark.parametrize("entry", SHAPES, ids=lambda entry: entry["kind"])
def test_decoding_accepts_what_the_expectation_says(pair, entry):
    """Over many rounds, accepted tokens less their exact expectation on the round's own tree is zero within its error."""
    (shape,) = shapes_of([entry])
    for verifier in shape.verifiers:
        decoder, differences = decoder_of(pair, shape, verifier), []
        for seed in range(3):
            options = {"max_new_tokens": 120, "temperature": 1.0, "randomness": Randomness(seed), "observe": True}
            for step in decoder.stream([1, 2, 3], **options):
                if step.evidence is not None and step.evidence.tree.num_nodes:
                    law = VERIFIERS[verifier](step.evidence.tree, step.evidence.target_probs)
                    differences.append(step.record.accepted - law.expected_accepted_length())
        error = np.std(differences) / np.sqrt(len(differences))
        assert len(differences) > 60
        assert abs(np.mean(differences)) < 3.5 * error, verifier


def test_acceptance_by_depth_weighs_every_drafted_path_once(pair):
    (shape,) = shapes_of([IID])
    root = a_root(pair)
    (evidence,) = draw_trees(decoder_of(pair, shape, "nss"), root, 2, 1)
    rows = acceptance_rows(evidence, root, fixed_draws=2, lists=400)
    assert {row["solver"] for row in rows} == {"nss", "naive_tree", "spectr", "specinfer", "khisti"}
    assert {row["paths"] for row in rows} == {3}
    children, tree = evidence.tree.child_lists, evidence.tree
    for draws in (0, 2):
        row = next(r for r in rows if (r["solver"], r["draws"], r["depth"]) == ("specinfer", draws, 1))
        rates = [
            float(acceptance_rate("specinfer", evidence.target_probs[[n + 1]], tree.draft_probs[[n + 1]], count))
            for n in children[0]
            for count in [draws or children[0].count(n)]
        ]
        assert row["rate"] == pytest.approx(np.mean(rates))
    distances = [float((evidence.target_probs[n + 1] - tree.draft_probs[n + 1]).abs().sum()) for n in children[0]]
    assert next(r for r in rows if r["depth"] == 1)["distance"] == pytest.approx(np.mean(distances))
    rates = [  # of Khisti's rule, exactly
        float(acceptance_rate("khisti", evidence.target_probs[[n + 1]], tree.draft_probs[[n + 1]], 2))
        for n in children[0]
    ]
    row = next(r for r in rows if (r["solver"], r["draws"], r["depth"]) == ("khisti", 2, 1))
    assert row["rate"] == pytest.approx(np.mean(rates), abs=0.02)  # estimated from sampled lists


def test_shapes_are_chosen_on_validation_prompts_and_scored_on_test_prompts(pair, tmp_path):
    _, made = study(pair, tmp_path)
    tables, choices = made()
    roots = pd.DataFrame(tables[ROOTS])
    assert {(c["setting"], c["family"], c["verifier"]) for c in choices} == set(
        roots[["setting", "family", "verifier"]].itertuples(index=False, name=None)
    )
    for choice in choices:
        same = roots.query(
            "split == 'validation' and setting == @choice['setting'] and verifier == @choice['verifier']"
        )
        means = same[same["family"] == choice["family"]].groupby("drafter")["expected"].mean()
        assert choice["drafter"] == means.idxmax()
        assert choice["sweep"] == pytest.approx(means.to_dict())
    assert set(roots["setting"]) == {"T=1", "T=1, top-p 0.9"}
    per_root = roots.groupby(["split", "setting", "prompt", "root"])["verifier"].count()
    assert per_root.eq(2 + 2 + 7 + 4).all() and len(per_root) == (1 + 2) * 2 * 2


def test_an_interrupted_comparison_resumes_to_the_same_rows(pair, tmp_path):
    _, made = study(pair, tmp_path / "whole")
    whole, choices = made()
    blocks, broken = study(pair, tmp_path / "broken")
    once, calls = blocks.log.once, []

    def interrupted(key, measure):
        calls.append(key)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return once(key, measure)

    blocks.log.once = interrupted
    with pytest.raises(KeyboardInterrupt):
        broken()
    blocks, resumed = study(pair, tmp_path / "broken")
    assert blocks.log.resumed == 6
    tables, again = resumed()
    assert (tables, again) == (whole, choices)


def test_roots_leave_room_for_the_tree_of_the_acceptance_rates(pair, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(roots_module, "MatchedRoots", lambda *given: asked.append(given[3]) or MatchedRoots(*given))
    _, deep = study(pair, tmp_path, replace(CONFIG, acceptance=AcceptanceConfig(k=2, depth=9)))
    deep()
    assert asked == [9] and max(shape.depth for shape in shapes_of(CONFIG.drafters)) < 9


def test_the_progress_bar_of_a_resumed_comparison_ends_full(pair, tmp_path):
    whole, made = study(pair, tmp_path)
    tables, _ = made()
    resumed, again = study(pair, tmp_path)
    assert resumed.log.resumed > 0
    assert again()[0] == tables
    assert resumed.bar.n == resumed.bar.total == whole.bar.n > 0


def test_the_time_cap_ends_every_part_after_a_whole_prompt(pair, tmp_path):
    capped, made = study(pair, tmp_path, replace(CONFIG, max_minutes=0.0))
    tables, _ = made()
    assert capped.capped
    assert {row["prompt"] for row in tables[ROOTS]} == {"validation-0", "test-0"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"root_spacing": 0}, "root_spacing must be >= 1, got 0"),
        ({"settings": []}, "settings must .*got"),
        ({"rootspacing": 3}, "unknown key 'rootspacing'.*root_spacing"),
        ({"drafters": [{"kind": "star"}]}, "unknown kind 'star'"),
        ({"drafters": [{"kind": "chain", "gama": 3}]}, "unknown key 'gama'"),
        ({"drafters": [CHAIN, CHAIN]}, "chain-3 is given twice"),
        ({"drafters": [{**DISTINCT, "verifiers": ["spectr"]}]}, "distinct-3.2 cannot be verified by .*spectr"),
        ({"drafters": [{"kind": "multi_candidate", "config": [2, 2], "roots": "target"}]}, "several roots .* use one"),
        ({"acceptance": {"k": 0}}, "k must be >= 1, got 0"),
        ({"acceptance": {"lists": 0}}, "lists must be >= 1, got 0"),
        ({"settings": [{"temperature": -1.0}]}, "temperature must be"),
    ],
)
def test_a_broken_section_is_refused_by_name(tmp_path, change, message):
    section = {"drafters": [CHAIN], "settings": [{"temperature": 1.0}]}
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({"pairs": {"p": {"verifiers": section | change}}}))
    with pytest.raises(ValueError, match=message):
        load_parameters(VerifierConfig, "p", "verifiers", path)


def test_stage_writes_tables_choices_and_origin(tmp_path):
    section = {
        **{key: value for key, value in vars(CONFIG).items() if isinstance(value, int)},
        "drafters": [CHAIN, IID],
        "settings": [{"temperature": 1.0}],
        "acceptance": {"k": 2, "depth": 2},
    }
    args = toy_bench(tmp_path, "verifiers", section, VOCABULARY)
    verifiers.run(args)
    folder = args.output / "toy-1c"
    assert set(pd.read_parquet(folder / ROOTS)["setting"]) == {"T=1"} and (folder / ACCEPTANCE).is_file()
    choices = json.loads((folder / CHOICES).read_text())
    assert {choice["drafter"] for choice in choices["choices"]} == {"chain-3", "iid-3x2"} and not choices["capped"]
    assert not list(folder.glob("*.jsonl"))
    assert json.loads((folder / "provenance.json").read_text())["parameters"]["root_spacing"] == 4
