"""Token traces: what each row says, the states that a stop model sees, and a collection that goes on."""

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from predictors.sampling import SamplingSettings
from predictors.schema import TOKEN_COLUMNS
from predictors.stopping.features import law_features
from runtime import ModelPair, Randomness, load_decoder
from runtime.laws import processed_law
from tests.bundles import stop_bundle
from tests.toys import tiny_llama
from tests.trace_collection.collecting import contents, quiet, random_prompts, read
from trace_collection.collection import seed_of
from trace_collection.tokens import TokenTraceConfig, collect_tokens

CONFIG = TokenTraceConfig(gamma_max=3, every=1, max_new_tokens=20, top=4, prompts_per_shard=2, threads=1)


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


@pytest.fixture(scope="module")
def prompts():
    return random_prompts([4, 6, 5], ["train", "validation", "test"])


@pytest.fixture(scope="module")
def collected(pair, prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    collect_tokens(pair, prompts, CONFIG, folder, quiet)
    return folder


def test_columns_and_manifest(collected):
    rows, manifest = read(collected), json.loads((collected / "manifest.json").read_text())
    assert set(rows[0]) == set(TOKEN_COLUMNS)
    assert manifest["gamma_max"] == 3
    assert manifest["stop_spec"] == {"draft_layers": [1], "draft_hidden_size": 32, "top": 4}
    assert {row["temperature"] for row in rows} == {0.0, 1.0}
    assert {len(row["before"]) for row in rows} == {32} == {len(row["behind"]) for row in rows}


def test_what_was_tested_and_accepted(collected):
    rounds = {}
    for row in read(collected):
        rounds.setdefault((row["prompt_id"], row["temperature"], row["round"]), []).append(row)
    lengths = set()
    for rows in rounds.values():
        assert [row["place"] for row in rows] == [*range(len(rows))]
        accepted = [row["accepted"] for row in rows]
        assert accepted == sorted(accepted, reverse=True), "a prefix is accepted"
        assert [row["tested"] for row in rows] == [True, *accepted[:-1]]
        assert {row["censored"] for row in rows} == {len(rows) < 3}
        lengths.add(sum(accepted))
        for row, behind in pairwise(rows):
            assert row["behind"] == behind["before"]
    assert lengths == {0, 1, 2, 3}


def test_rows_are_those_of_passes_over_the_whole_text(collected, pair, prompts):
    """Laws, labels and states behind every drafted token, computed anew; at temperature 1 all that decoding draws from."""
    by_id = {prompt.id: list(prompt.tokens) for prompt in prompts}
    settings, checked = SamplingSettings(1.0), 0
    texts = _texts(pair, prompts, settings)
    rows = [row for row in read(collected) if row["temperature"] == 1]
    for row in rows[::5]:
        drafted = [
            other["token"]
            for other in rows
            if (other["prompt_id"], other["round"]) == (row["prompt_id"], row["round"])
            and other["place"] < row["place"]
        ]
        text = (by_id[row["prompt_id"]] + texts[row["prompt_id"]])[: row["position"]] + drafted
        passes = [model.open(64, layers).forward(text) for model, layers in ((pair.target, ()), (pair.draft, (1,)))]
        p, q = (processed_law(out.logits[-1], settings) for out in passes)
        token = row["token"]
        assert row["probability"] == pytest.approx(float(q[token]), rel=1e-3)
        assert row["acceptance"] == pytest.approx(min(1.0, float(p[token] / q[token])), rel=1e-3)
        assert row["overlap"] == pytest.approx(float(torch.minimum(p, q).sum()), rel=1e-3)
        assert row["entropy"] == pytest.approx(float(-(q * q.log()).sum()), rel=1e-3)
        assert row["top"] == pytest.approx(q.sort(descending=True).values[:4].tolist(), rel=1e-3)
        assert np.allclose(row["before"], passes[1].hidden_NKD[-1].reshape(-1).numpy(), atol=5e-3)
        checked += 1
    assert checked > 10


def _texts(pair, prompts, settings):
    """What was emitted while collecting, decoded again."""
    from runtime import build_decoder

    decoder = build_decoder(
        pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}, "verifier": "tokenwise"}
    )
    return {
        prompt.id: decoder.generate(
            list(prompt.tokens),
            max_new_tokens=20,
            temperature=settings.temperature,
            randomness=Randomness(seed_of(CONFIG.seed, prompt.id, settings)),
        ).tokens
        for prompt in prompts
    }


@pytest.mark.parametrize("inputs", ["law", "before", "behind"])
def test_stored_features_are_the_served_ones_bit_for_bit(collected, pair, prompts, tmp_path, inputs):
    """A stop model that never stops meets in every pass what a collection of the same text stored."""
    stored = {
        (row["position"], row["place"]): row
        for row in read(collected)
        if row["prompt_id"] == "p0" and row["temperature"] == 1
    }

    def whole(card):
        card["decoder"] |= {"drafter": {"kind": "chain", "gamma": 4}, "verifier": "tokenwise"}

    folder = stop_bundle(tmp_path / "b", pair, inputs=inputs, threshold=1e-9, change=whole, top=4)
    decoder, seen = load_decoder(folder, pair), []
    features = decoder.controller.features
    decoder.controller.features = lambda law: (seen.append((law, features(law))), features(law))[1]
    randomness = Randomness(seed_of(CONFIG.seed, "p0", SamplingSettings(1.0)))
    decoder.generate(list(prompts[0].tokens), max_new_tokens=20, temperature=1.0, randomness=randomness)
    compared = 0
    for law, served in seen:
        place = law.drafted - (inputs == "behind")
        row = stored.get((law.root.position, place))
        if row is None:
            continue
        if inputs == "law":
            assert torch.equal(served, torch.tensor([*row["top"], row["entropy"]]))
            assert torch.equal(served, law_features(law, 4))
        else:
            assert served.half().numpy().tolist() == row[inputs]
        compared += 1
    assert compared > 10


def test_an_interrupted_collection_ends_in_the_same_bytes(collected, pair, prompts, tmp_path):
    def interrupted(work, total):
        for number, one in enumerate(work):
            if number == 4:
                raise KeyboardInterrupt
            yield one

    with pytest.raises(KeyboardInterrupt):
        collect_tokens(pair, prompts, CONFIG, tmp_path, interrupted)
    assert collect_tokens(pair, prompts, CONFIG, tmp_path, quiet)["kept"] == 2
    assert contents(tmp_path) == contents(collected)


def test_bad_parameters_and_pairs():
    with pytest.raises(ValueError, match="top must be >= 1, got 0"):
        dataclasses.replace(CONFIG, top=0)
    with pytest.raises(ValueError, match="at least gamma_max \\+ 3, got 5 and 3"):
        dataclasses.replace(CONFIG, max_new_tokens=5)
    with pytest.raises(ValueError, match="this pair has none"):
        collect_tokens(ModelPair(tiny_llama()), [], CONFIG, None, quiet)
