"""Root traces: the places they lie at, the features that a decoder's controller sees there, and a collection that goes on."""

import dataclasses
import json

import numpy as np
import pytest

from predictors.actions import ActionSet
from predictors.controllers.delayed_tree import DelayedTree
from predictors.sampling import SamplingSettings
from predictors.schema import ROOT_COLUMNS
from predictors.training.tables import RootTable
from predictors.tree_choice import SCALARS, scalars_of, state_of
from runtime import ModelPair, Randomness, load_decoder
from tests.bundles import selector_bundle
from tests.toys import tiny_llama
from tests.trace_collection.collecting import gather, random_prompts, read
from trace_collection.trajectories import Trajectory
from trace_collection.trees import TreeCollector, TreeTraceConfig

ACTIONS = ActionSet(chains=(1, 3), k=(2,), l1=(0, 1), l2=(1, 2))
CONFIG = TreeTraceConfig(
    actions=ACTIONS,
    rules=("specinfer", "traversal", "block"),
    spacing=5,
    roots_per_prompt=3,
    prompts=(3, 1, 1),
    draws=(2, 2, 3),
    prompts_per_shard=2,
    threads=1,
)


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


@pytest.fixture(scope="module")
def prompts():
    return random_prompts([4, 6, 5, 7, 4, 6], ["train", "train", "validation", "train", "train", "test"])


@pytest.fixture(scope="module")
def collected(pair, prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roots")
    gather(TreeCollector(pair, CONFIG, prompts), folder)
    return folder


def test_columns_manifest_and_places(collected, prompts):
    rows, manifest = read(collected), json.loads((collected / "manifest.json").read_text())
    assert set(rows[0]) == set(ROOT_COLUMNS)
    assert manifest["rules"] == list(CONFIG.rules) and manifest["draws"] == 3
    assert manifest["selection_spec"]["actions"] == [dataclasses.asdict(action) for action in ACTIONS.actions]
    assert manifest["contract"]["serving_range"]["settings"] == [[0.6, 0.0, 1.0], [1.0, 0.0, 1.0]]
    by_id = {prompt.id: prompt for prompt in prompts}
    assert [row["prompt_id"] for row in rows[::6][:1]] == ["p0"]
    for row in rows:
        assert row["position"] == len(by_id[row["prompt_id"]].tokens) + 1 + 5 * row["root"]
    assert len(rows) == 2 * 5 * 3, "two settings, five prompts, three roots"
    assert {row["prompt_id"] for row in rows} == {"p0", "p1", "p2", "p3", "p5"}, "three of the four for training"


def test_labels_lie_between_one_and_the_depth(collected):
    assert RootTable.read(collected).rows("test").efficiency_NDKA.shape[1] == 3
    table = RootTable.read(collected).rows("train")
    efficiency = table.efficiency_NDKA
    assert efficiency.shape == (len(table), 2, 3, len(ACTIONS.actions))
    depths = np.array([action.depth for action in ACTIONS.actions])
    chains = np.array([action.is_chain for action in ACTIONS.actions])
    assert np.isnan(efficiency[:, :, 2][..., ~chains]).all(), "block verification takes no branching tree"
    known = efficiency[np.isfinite(efficiency)]
    assert len(known) == efficiency.size - 2 * len(table) * (~chains).sum()
    assert (known >= 1 - 1e-6).all() and (np.nan_to_num(efficiency) <= depths + 1 + 1e-6).all()
    order = [place for place, action in enumerate(ACTIONS.actions) if action.is_chain]
    assert (np.diff(efficiency[:, :, 0][..., order]) >= -1e-6).all(), "a longer chain of the same draws accepts no less"
    assert not np.allclose(efficiency[:, 0], efficiency[:, 1], equal_nan=True), "draws differ"


def test_features_are_those_a_controller_sees_there(pair, prompts, tmp_path, monkeypatch):
    """The first root of a prompt is the state after the prefill; a decoder that emits the same token meets the same."""
    collector, prompt, settings = TreeCollector(pair, CONFIG, prompts), prompts[0], SamplingSettings(1.0)
    seen, decoder = [], load_decoder(selector_bundle(tmp_path / "b", pair), pair)
    expected = DelayedTree.expected
    monkeypatch.setattr(
        DelayedTree, "expected", lambda controller, root: (seen.append(root), expected(controller, root))[1]
    )
    for seed in range(10):
        randomness = Randomness(seed)
        text = decoder.generate(prompt.tokens, max_new_tokens=6, temperature=1.0, randomness=randomness).tokens
        drawn = Trajectory(prompt.tokens, settings, Randomness(0), tokens=text)
        monkeypatch.setattr(collector, "texts", lambda jobs, drawn=drawn: iter([(jobs[0], drawn)]))
        columns = next(collector.rows([(settings, prompt)]))
        root = next(view for view in seen if view.root.position == len(prompt.tokens) + 1)
        np.testing.assert_array_equal(columns["state"][0], state_of(root).numpy())
        np.testing.assert_allclose(columns["scalars"][0], scalars_of(root).numpy(), rtol=1e-5, atol=1e-6)
        seen.clear()


def test_scalars_have_their_names(collected):
    table = RootTable.read(collected)
    columns = dict(zip(SCALARS, table.column("scalars").T, strict=True))
    np.testing.assert_array_equal(columns["position"], table.column("position"))
    np.testing.assert_allclose(columns["temperature"], table.column("temperature"))
    assert (columns["target_entropy"] > 0).all() and (columns["divergence"] > 0).all()
    assert ((columns["distance"] > 0) & (columns["distance"] < 2)).all()


def test_more_draws_agree_with_fewer_on_average(pair, prompts):
    """Each draw is an unbiased label: means over roots differ by their spread only."""
    config = dataclasses.replace(CONFIG, draws=(24, 1, 1), rules=("specinfer",))
    rows = next(TreeCollector(pair, config, prompts).rows([(SamplingSettings(1.0), prompts[0])]))
    labels = rows["efficiency"].reshape(-1, 24, len(ACTIONS.actions))
    first, second = labels[:, :12].mean(1), labels[:, 12:].mean(1)
    error = labels.std(axis=1) / np.sqrt(6)
    assert (np.abs(first - second) <= 4 * error + 1e-9).all()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"settings": (SamplingSettings(0.0),)}, "temperatures above 0"),
        ({"rules": ("rrs_without_replacement",)}, "no rules for i.i.d. trees.*specinfer"),
        ({"rules": ("magic", "hsd")}, r"no rules for i.i.d. trees: \['magic', 'hsd'\]"),
        ({"draws": (2, 0, 1)}, r"draws\[1\] must be >= 1"),
        ({"spacing": 1}, "spacing must be >= 2"),
        ({"prompts": (1, 2)}, "prompts must have 3 entries"),
    ],
)
def test_bad_parameters_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_roots_hold_the_text_they_lie_in(collected, prompts):
    """What follows the prompt, up to the newest token; later roots of a prompt go on where earlier ones were."""
    table = RootTable.read(collected)
    lengths = {prompt.id: len(prompt.tokens) for prompt in prompts}
    texts = {}
    for row in range(len(table)):
        text = table.continuation(row)
        name = table.column("prompt_id")[row]
        assert lengths[name] + len(text) == table.column("position")[row]
        key = (name, table.setting_N[row])
        assert text[: len(texts.get(key, []))] == texts.get(key, [])
        texts[key] = text
