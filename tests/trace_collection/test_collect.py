"""Round traces: what the rows say is true, and a collection survives interruption, damage and changed parameters."""

import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from predictors.features import state_vector
from predictors.schema import ROUND_COLUMNS
from runtime import ModelPair, build_decoder
from tests.toys import tiny_llama
from tests.trace_collection.collecting import Prompt, contents, quiet, random_prompts, read
from trace_collection import collection
from trace_collection.collect import TraceConfig, collect

CONFIG = TraceConfig(gamma_max=3, max_new_tokens=14, num_layers=2, prompts_per_shard=2, threads=1)


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0, layers=3), tiny_llama(seed=0, layers=1))


@pytest.fixture(scope="module")
def prompts():
    return random_prompts([4, 6, 5, 7, 4], ["train"] * 5)


@pytest.fixture(scope="module")
def collected(pair, prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rounds")
    collect(pair, prompts, CONFIG, folder, quiet)
    return folder


@torch.no_grad()
def greedy(model, tokens, length):
    tokens = list(tokens)
    for _ in range(length):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens


def test_columns_and_manifest(collected, prompts):
    manifest = json.loads((collected / "manifest.json").read_text())
    assert manifest["gamma_max"] == 3 and manifest["feature_layers"] == [2, 3]
    assert manifest["hidden_size"] == 32 and manifest["embedding_size"] == 32
    assert manifest["contract"]["identity"]["last_layer_post_norm"] is True
    assert manifest["dtypes"] == {"target": "float32", "draft": "float32"}
    assert [shard["name"] for shard in manifest["shards"]] == [f"part-0000{index}.parquet" for index in range(3)]
    rows = read(collected)
    assert manifest["num_rows"] == len(rows)
    assert set(rows[0]) == set(ROUND_COLUMNS)
    assert {row["prompt_id"] for row in rows} == {prompt.id for prompt in prompts}


def test_rows_tell_the_truth(collected, pair, prompts):
    """Acceptance, states and contexts recomputed without any cache."""
    target, draft = pair.target.model, pair.draft.model
    by_id = {prompt.id: prompt for prompt in prompts}
    for row in read(collected):
        text = greedy(target, by_id[row["prompt_id"]].tokens, CONFIG.max_new_tokens)
        root = text[: row["position"]]
        assert root[-1] == row["newest_token"]
        proposed = greedy(draft, root, row["drafted"])[len(root) :]
        assert row["tokens"][: row["drafted"]] == proposed
        wanted = [greedy(target, [*root, *proposed[:place]], 1)[-1] for place in range(row["drafted"])]
        agreed = [a == b for a, b in zip(proposed, wanted, strict=True)]
        accepted = agreed.index(False) if False in agreed else len(agreed)
        assert row["accepted"] == accepted
        assert row["censored"] == (row["drafted"] < CONFIG.gamma_max)
        assert row["on_path"] == [place <= accepted and place < row["drafted"] for place in range(CONFIG.gamma_max)]
        with torch.no_grad():
            hidden = target(torch.tensor([root]), output_hidden_states=True).hidden_states
        expected = torch.cat([hidden[2][0, -2], hidden[3][0, -2], target.get_input_embeddings().weight[root[-1]]])
        np.testing.assert_allclose(
            np.asarray(row["state"], np.float32), expected.detach().numpy(), atol=2e-3, rtol=2e-3
        )
        np.testing.assert_allclose(row["acceptance"][: row["drafted"]], np.array(agreed, float), atol=1e-6)


def test_where_the_newest_token_came_from(collected, prompts, tmp_path):
    model = tiny_llama(seed=0, layers=3)
    collect(ModelPair(model, model), prompts, CONFIG, tmp_path, quiet)  # accepts everything
    rows = read(collected) + read(tmp_path)
    for before, row in zip([None, *rows[:-1]], rows, strict=True):
        if row["round"] == 1:
            assert row["newest_token_source"] == "prefill" and row["previous_drafted"] == -1
        else:
            everything = before["accepted"] == before["drafted"]
            assert row["newest_token_source"] == ("bonus" if everything else "correction")
            assert (row["previous_drafted"], row["previous_accepted"]) == (before["drafted"], before["accepted"])
    assert {row["newest_token_source"] for row in rows} == {"prefill", "bonus", "correction"}


def test_confidences_are_the_unfiltered_laws(collected, pair, prompts):
    draft = pair.draft.model
    by_id = {prompt.id: prompt for prompt in prompts}
    row = read(collected)[1]
    root = greedy(pair.target.model, by_id[row["prompt_id"]].tokens, CONFIG.max_new_tokens)[: row["position"]]
    with torch.no_grad():
        law = draft(torch.tensor([root])).logits[0, -1].softmax(-1)
    assert row["confidence"][0] == pytest.approx(float(law.max()), abs=1e-4)
    assert row["entropy"][0] == pytest.approx(float(-(law * law.log()).sum()), abs=1e-3)


def test_stored_states_are_the_served_ones_bit_for_bit(collected, pair, prompts):
    decoder = build_decoder(
        pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}, "verifier": "tokenwise"}
    )
    steps = list(decoder.stream(prompts[0].tokens, max_new_tokens=CONFIG.max_new_tokens, observe=True, layers=(2, 3)))
    rows = [row for row in read(collected) if row["prompt_id"] == "p0"]
    for row, step in zip(rows, steps[1:], strict=True):
        served = state_vector(step.evidence.root.hidden_KD, step.evidence.root.embedding_E)
        assert np.array_equal(np.asarray(row["state"], np.float16), served.numpy())


@pytest.mark.parametrize("stop_after", [0, 1, 2, 3, 4])
def test_interrupted_collection_ends_in_the_same_bytes(collected, pair, prompts, tmp_path, stop_after):
    def interrupted(work, total):
        for index, item in enumerate(work):
            if index == stop_after:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        collect(pair, prompts, CONFIG, tmp_path, interrupted)
    assert not (tmp_path / "manifest.json").exists()
    done = collect(pair, prompts, CONFIG, tmp_path, quiet)
    assert done["kept"] == stop_after // 2
    assert contents(tmp_path) == contents(collected)


def test_truncated_shard_is_collected_again(collected, pair, prompts, tmp_path):
    collect(pair, prompts, CONFIG, tmp_path, quiet)
    shard = tmp_path / "part-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:1000])
    assert collect(pair, prompts, CONFIG, tmp_path, quiet)["kept"] == 2
    assert contents(tmp_path) == contents(collected)


def test_damaged_shard_is_collected_again(collected, pair, prompts, tmp_path):
    collect(pair, prompts, CONFIG, tmp_path, quiet)
    shard = tmp_path / "part-00001.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 0xFF
    shard.write_bytes(bytes(data))
    assert collect(pair, prompts, CONFIG, tmp_path, quiet)["kept"] == 2
    assert contents(tmp_path) == contents(collected)


def test_shards_of_other_code_are_collected_again(pair, prompts, tmp_path):
    collect(pair, prompts, CONFIG, tmp_path, quiet, code="one")
    assert collect(pair, prompts, CONFIG, tmp_path, quiet, code="one")["kept"] == 3
    assert collect(pair, prompts, CONFIG, tmp_path, quiet, code="two")["kept"] == 0


@pytest.mark.parametrize("change", [{"gamma_max": 2}, {"seed": 1}, {"max_new_tokens": 12}, {"prompts_per_shard": 4}])
def test_changed_parameters_never_mix_with_old_shards(collected, pair, prompts, tmp_path, change):
    collect(pair, prompts, CONFIG, tmp_path, quiet)
    changed = dataclasses.replace(CONFIG, **change)
    assert collect(pair, prompts, changed, tmp_path, quiet)["kept"] == 0
    fingerprints = {pq.read_schema(path).metadata[b"fingerprint"] for path in tmp_path.glob("*.parquet")}
    assert fingerprints == {json.loads((tmp_path / "manifest.json").read_text())["fingerprint"].encode()}


def test_another_pair_never_mixes_with_old_shards(pair, prompts, tmp_path):
    collect(pair, prompts, CONFIG, tmp_path, quiet)
    other = ModelPair(tiny_llama(seed=5, layers=3), tiny_llama(seed=0, layers=1))
    assert collect(other, prompts, CONFIG, tmp_path, quiet)["kept"] == 0


def test_another_number_format_of_the_draft_never_mixes_with_old_shards(pair, prompts, tmp_path):
    """Not even where the weights are bfloat16's in both formats, and it is the same pair: what is learned from it serves both."""
    manifests = []
    for dtype in ("float32", "bfloat16"):
        draft = tiny_llama(seed=0, layers=1).to(torch.bfloat16).to(getattr(torch, dtype))
        assert collect(ModelPair(pair.target.model, draft), prompts, CONFIG, tmp_path, quiet)["kept"] == 0
        manifests.append(json.loads((tmp_path / "manifest.json").read_text()))
        assert manifests[-1]["dtypes"] == {"target": "float32", "draft": dtype}
    assert manifests[0]["contract"] == manifests[1]["contract"]


def test_other_versions_of_the_libraries_keep_what_is_finished(pair, prompts, tmp_path, monkeypatch):
    """They are provenance: an upgrade half-way does not begin anew."""
    first = collect(pair, prompts, CONFIG, tmp_path, quiet)
    monkeypatch.setattr(collection, "_versions", lambda: {"torch": "9.9", "transformers": "9.9"})
    assert collect(pair, prompts, CONFIG, tmp_path, quiet)["kept"] == first["shards"] > 0


def test_another_number_format_of_the_target_never_mixes_with_old_shards(pair, prompts, tmp_path):
    collect(pair, prompts, CONFIG, tmp_path, quiet)
    rounded = ModelPair(tiny_llama(seed=0, layers=3).to(torch.bfloat16), pair.draft.model)
    assert collect(rounded, prompts, CONFIG, tmp_path, quiet)["kept"] == 0


def test_sampled_collection_is_reproducible(pair, prompts, tmp_path):
    config = dataclasses.replace(CONFIG, temperatures=(0.0, 1.0))
    for name in ("first", "second"):
        collect(pair, prompts, config, tmp_path / name, quiet)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    rows = [row for row in read(tmp_path / "first") if row["temperature"] == 1.0]
    overlaps = [value for row in rows for value in row["overlap"][: row["drafted"]]]
    assert rows and all(0 < value <= 1 + 1e-6 for value in overlaps)


def test_disk_budget_is_checked_before_anything_changes(collected, pair, prompts, tmp_path):
    collect(pair, prompts, CONFIG, tmp_path, quiet)
    before = contents(tmp_path)
    small = dataclasses.replace(CONFIG, max_gigabytes=1e-6, seed=3)
    with pytest.raises(ValueError, match=r"need up to .* traces.max_gigabytes allows only 1e-06 GB"):
        collect(pair, prompts, small, tmp_path, quiet)
    assert contents(tmp_path) == before


def test_continuations_too_short_for_a_label_are_refused():
    with pytest.raises(ValueError, match="max_new_tokens at least gamma_max"):
        TraceConfig(gamma_max=8, max_new_tokens=8)


def test_prompts_longer_than_the_context_are_refused_first(pair, prompts, tmp_path):
    long = Prompt("long", "d9", "code", "train", [1] * 250)
    with pytest.raises(ValueError, match="prompt long has 250 tokens.*does not fit the pair's context of 256"):
        collect(pair, [*prompts, long], CONFIG, tmp_path / "out", quiet)
    with pytest.raises(ValueError, match="no prompts to collect from"):
        collect(pair, [], CONFIG, tmp_path / "out", quiet)
    assert not (tmp_path / "out").exists()
