"""Pricing guess traces by a profile of affine costs, and the choice among the ways of a method."""

import dataclasses
import json

import numpy as np
import pytest

from predictors.latency.profile import LatencyProfile
from predictors.training.guesses import GuessTable, choose, pass_seconds
from runtime import ModelPair
from tests.pipelines.toy_bench import toy_prompts
from tests.predictors.affine_profile import COSTS, PROFILE
from tests.toys import tiny_llama
from tests.trace_collection.collecting import gather
from trace_collection.guesses import GuessCollector, GuessTraceConfig

SMALL = {"method": "progressive_tree", "max_children": 1, "max_depth": 2, "pool_nodes": 2}
LARGE = {"method": "progressive_tree", "max_children": 4, "max_depth": 6}
WAYS = (SMALL, LARGE, {"method": "self_draft", "branches": 2, "length": 4})
REPLICATES, SEED = 50, 0


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guesses")
    config = GuessTraceConfig(ways=WAYS, max_new_tokens=30, threads=1)
    pair = ModelPair(tiny_llama(8, seed=0))
    gather(GuessCollector(pair, config, toy_prompts(4, "validation", vocabulary=8)), folder)
    return GuessTable.read(folder)


def low(name, *places):
    """The affine profile's fast quartile."""
    return COSTS[name](*places) / 2


@pytest.mark.parametrize("sampled", [False, True])
def test_a_pass_costs_its_rows_its_verdict_and_its_upkeep(sampled):
    guessed, drafted, context = np.array([0, 3, 3, 0]), np.array([0, 2, 2, 5]), np.array([10, 20, 20, 30])
    seconds = pass_seconds(PROFILE, guessed, drafted, context, sampled)
    verdict = [low("verification_nss", count) if sampled else low("tree_verification", count, 0) for count in (2, 5)]
    expected = [
        low("target", 1, 10) + low("chain_verification", 0, sampled),
        low("target", 6, 20) + verdict[0] + low("guessing", 3),
        low("target", 6, 20) + verdict[0] + low("guessing", 3),
        low("target", 6, 30) + verdict[1],
    ]
    assert seconds == pytest.approx(np.array(expected))


def test_the_way_of_most_tokens_per_second_is_chosen(table):
    chosen, rows = choose(table, "progressive_tree", PROFILE, REPLICATES, SEED)
    assert [row["way"] for row in rows] == [SMALL, SMALL, LARGE, LARGE]
    seconds = {0: 0.0, 1: 0.0}
    tokens = {0: 0, 1: 0}
    names = ("way", "guessed", "drafted", "position", "committed", "temperature")
    for way, guessed, drafted, position, committed, temperature in zip(*map(table.column, names), strict=True):
        if way in seconds:
            sampled = int(temperature > 0)
            verdict = low("chain_verification", 0, sampled)
            if drafted:
                verdict = low("verification_nss", drafted) if sampled else low("tree_verification", drafted, 0)
            seconds[way] += low("target", 1 + drafted + guessed, position) + verdict
            seconds[way] += low("guessing", guessed) if guessed else 0.0
            tokens[way] += committed
    best = max(seconds, key=lambda way: tokens[way] / seconds[way])
    assert chosen == WAYS[best]


def test_another_machine_another_choice(table):
    """Where rows are free the larger tree wins, where they are dear the smaller one."""

    def machine(row_cost):
        free = {"guessing": lambda guessed: 1e-3, "verification_nss": lambda drafted: 1e-3}
        free |= {f"{kind}_verification": lambda drafted, sampled: 1e-3 for kind in ("chain", "tree")}
        costs = {**COSTS, **free, "target": lambda tokens, context: 9 + row_cost * tokens}
        tables = {
            name: dataclasses.replace(made, **{part: _cells(made, costs[name]) for part in ("median", "low", "high")})
            for name, made in PROFILE.tables.items()
        }
        return LatencyProfile(tables, "toy", {}, {})

    assert choose(table, "progressive_tree", machine(0.001), REPLICATES, SEED)[0] == LARGE
    assert choose(table, "progressive_tree", machine(20.0), REPLICATES, SEED)[0] == SMALL


def _cells(table, cost):
    places = np.meshgrid(*table.axes.values(), indexing="ij")
    return np.vectorize(cost)(*places).astype(float) + 1e-9


def test_rows_tell_counts_and_worth(table):
    for row in choose(table, "progressive_tree", PROFILE, REPLICATES, SEED)[1]:
        hits, length = row["hit_rate"], row["accept_length"]
        assert row["decoding_efficiency"] == pytest.approx(hits * length + 1 - hits)
        assert row["speedup"]["low"] <= row["speedup"]["value"] <= row["speedup"]["high"]
        mask = (table.column("way") == list(WAYS).index(row["way"])) & (
            table.column("temperature") == float(row["setting"].removeprefix("T="))
        )
        assert row["guessed"] == pytest.approx(table.column("guessed")[mask].mean())
        plain = [
            committed * (low("target", 1, position) + low("chain_verification", 0, int(row["setting"] != "T=0")))
            for committed, position in zip(table.column("committed")[mask], table.column("position")[mask], strict=True)
        ]
        speed = row["tokens_per_second"]
        assert row["speedup"]["value"] == pytest.approx(sum(plain) * speed / table.column("committed")[mask].sum())
    json.dumps(choose(table, "progressive_tree", PROFILE, REPLICATES, SEED)[1], allow_nan=False)


def test_a_method_that_was_not_traced_is_refused(table):
    with pytest.raises(
        ValueError, match="no configuration of method 'lookahead', only of progressive_tree, self_draft"
    ):
        choose(table, "lookahead", PROFILE, REPLICATES, SEED)
