"""What rounds do outside of passes is timed in real rounds of the shape that the cell says; decisions do what they time."""

from dataclasses import replace
from itertools import count
from random import Random
from types import SimpleNamespace

import pytest
import torch

from predictors.rounds import RoundRecord
from runtime import ModelPair, Randomness, build_decoder
from runtime.device import PhaseClock
from runtime.latency import Cell, LatencyConfig, replaced, rounds, sweep, tables_of
from runtime.latency.cells import seconds_waited
from runtime.latency.rounds import LEVELS, Rounds, TimedPair, branch_cells, guessing_cells, plain_cells, round_cells
from tests.runtime.test_pair_and_build import tokenizer
from tests.toys import tiny_llama

CPU = torch.device("cpu")
GRID = LatencyConfig(drafted=(0, 2), tree_nodes=(3, 6), tree_rules=("specinfer", "khisti"), branch_rows=(1, 3))


def generator():
    return torch.Generator().manual_seed(0)


def timed_pair(pair):
    return TimedPair(pair, GRID, generator())


@pytest.fixture
def pair():
    return ModelPair(tiny_llama(64, seed=0), tiny_llama(64, seed=1, layers=1))


@pytest.fixture
def timed(pair):
    return timed_pair(pair)


@pytest.fixture
def made(monkeypatch):
    """Records of the rounds that cells take their seconds from, with the rule that verified them."""
    records, real = [], Rounds.next

    def noted(self):
        record, seconds = real(self)
        records.append((record, getattr(self.decoder, "verifier", None), self.temperature))
        return record, seconds

    monkeypatch.setattr(Rounds, "next", noted)
    return records


def measured(cell, times=3):
    seconds = [cell.measure() for _ in range(times)]
    cell.end()
    assert all(len(parts) == len(cell.tables) and min(parts) > 0 for parts in seconds)


def test_chains_and_trees_are_rounds_of_as_many_tokens_verified_by_their_rule(timed, made):
    places = set()
    for cell in round_cells(timed, GRID):
        made.clear()
        measured(cell)
        assert {record.drafted for record, *_ in made} == {cell.at["drafted"]}
        rule, sampled = cell.tables[-1].removeprefix("verification_"), cell.at.get("sampled", 1)
        rule = {"chain_verification": "block", "tree_verification": "traversal"}.get(rule, rule)
        levels = cell.at["drafted"] // (3 if sampled and rule != "block" else 1)
        assert {(record.levels, heat > 0) for record, _, heat in made} == {(levels, sampled == 1)}
        assert cell.at["drafted"] == 0 or {verifier.name for _, verifier, _ in made} == {rule}
        places |= {(table, *cell.at.values()) for table in cell.tables}
    chains = {("chain_verification", 0, sampled) for sampled in (0, 1)}
    chains |= {(f"chain_{part}", 2, sampled) for part in ("drawing", "verification") for sampled in (0, 1)}
    trees = {(f"tree_{part}", n, sampled) for part in ("drawing", "verification") for n in (3, 6) for sampled in (0, 1)}
    assert places == chains | trees | {(f"verification_{rule}", n) for rule in ("specinfer", "khisti") for n in (3, 6)}


@pytest.mark.parametrize("forward", ["auto", "graphed"])
@pytest.mark.parametrize("method", ["speculative", "branch_parallel"])
def test_noting_passes_changes_nothing(pair, method, forward):
    models = ModelPair(*(model.model for model in pair.models.values()), forward=forward)
    options = {"max_new_tokens": 30, "temperature": 1.0, "eos_token_id": []}
    texts = [
        build_decoder(one, {"method": method}).generate([1, 2], randomness=Randomness(0), **options).tokens
        for one in (models, timed_pair(models).pair)
    ]
    assert texts[0] == texts[1]


def test_every_pass_is_noted_and_what_is_kept(timed):
    requests = Rounds(timed, timed.decoder(method="speculative"), 1.0, lambda record: record.drafted == 5)
    for _ in range(4):
        record, seconds = requests.next()
        assert len(timed.target.passes) == 1 and len(timed.draft.passes) == record.passes
        assert len(timed.target.others) == 1 and timed.draft.others
        assert 0 < timed.draft.seconds < record.seconds["draft"] < seconds - timed.target.seconds


def test_drawing_is_the_draft_phase_and_verification_the_rest_each_without_its_passes(timed, monkeypatch):
    cell = next(cell for cell in round_cells(timed, GRID) if cell.tables == ("chain_drawing", "chain_verification"))

    def next_round(self):
        timed.draft.passes[:], timed.draft.others[:] = [(0.0, 0.5), (1.0, 1.25)], [0.0625]
        timed.target.passes[:], timed.target.others[:] = [(5.0, 7.0)], [0.25]
        return RoundRecord(drafted=2, seconds={"draft": 1.0, "verify": 9.0}), 4.0

    monkeypatch.setattr(Rounds, "next", next_round)
    assert cell.measure() == (1 - 0.8125, 4 - 1 - 2.25)


def test_rounds_of_another_shape_are_passed_over_and_requests_follow_each_other(timed, monkeypatch):
    shapes = iter([[4, 3], [2, 4], [4]])

    def stream(*_, **__):
        return iter([SimpleNamespace(record=RoundRecord(drafted=n)) for n in (4, *next(shapes))])  # first the prefill

    requests = Rounds(timed, SimpleNamespace(stream=stream), 0, lambda record: record.drafted == 4)
    assert [requests.next()[0].drafted for _ in range(2)] == [4, 4] and next(shapes) == [4]
    monkeypatch.setattr(rounds, "MOST_ROUNDS", 20)
    requests = Rounds(timed, timed.decoder(method="speculative"), 0, lambda record: False)
    with pytest.raises(ValueError, match="use smaller grids"):
        requests.next()


def test_a_round_waits_for_the_devices_of_both_models(timed, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    cells = round_cells(timed, replace(GRID, tree_nodes=(3,), tree_rules=()))
    timed.devices = {torch.device("cuda", index) for index in (0, 1)}
    for cell in cells:
        waited.clear()
        cell.measure()
        assert len(waited) > 4  # two devices before and after the round, and at every lap within it
        assert all({device.index for device in waited[at : at + 2]} == {0, 1} for at in range(0, len(waited), 2))
    assert not PhaseClock.waits_for


def test_plain_decoding_is_timed_in_whole_rounds_after_its_context(pair, monkeypatch):
    opened, real = [], pair.target.open
    monkeypatch.setattr(pair.target, "open", lambda *given: opened.append(given[0]) or real(*given))
    (cell,) = plain_cells(pair, timed_pair(pair), replace(GRID, contexts=(4, 12, 40)))
    assert (cell.tables, cell.at) == (("plain",), {"context": 12})
    measured(cell)
    assert opened == [12 + rounds.LONGEST]
    seconds = iter([1.0, 2.0, 3.0, 6.0])
    monkeypatch.setattr(Rounds, "next", lambda self: (RoundRecord(), next(seconds)))
    assert cell.measure() == (3.0,), "the mean of some in a row"


# ---- branches


@pytest.mark.parametrize("sizes", [(64, 64), (64, 56), (56, 64)])
def test_every_round_grows_as_many_branches_as_its_cell_says_and_drafts_nothing_idle(sizes, made):
    """Embeddings may be padded to different sizes: Qwen2.5's are."""
    words = tokenizer([f"w{i}" for i in range(48)])
    models = (tiny_llama(size, seed, layers=1) for seed, size in enumerate(sizes))
    timed = timed_pair(ModelPair(*models, tokenizer=words, draft_tokenizer=words))
    cells = branch_cells(timed, GRID)
    assert [cell.at for cell in cells] == [{"rows": rows, "sampled": s} for s in (0, 1) for rows in (1, 3)]
    for cell in cells:
        made.clear()
        measured(cell, 20)
        for record, *_ in made:
            assert (record.idle_levels, record.levels) == (0, LEVELS + 2)  # the candidates, and LEVELS + 1 after them
            assert record.drafted == cell.at["rows"] * record.levels


def test_the_first_level_and_the_others_are_told_apart(timed, monkeypatch):
    """Between passes 3 seconds, then 1 and 2; what came before the branch point does not count."""
    ends = [(0.0, 1.0), (8.0, 10.0), (13.0, 14.0), (15.0, 16.0), (18.0, 19.0)]
    monkeypatch.setattr(Rounds, "next", lambda self: timed.draft.passes.__setitem__(slice(None), ends) or (None, 9.0))
    assert branch_cells(timed, GRID)[0].measure() == (3.0, 1.5)


# ---- a model that drafts for itself, and decisions


def test_upkeep_is_timed_in_passes_that_fed_as_many_guesses(timed, made):
    for cell in guessing_cells(timed, replace(GRID, guessed=(2, 8, 32))):
        made.clear()
        measured(cell)
        assert {record.guessed for record, *_ in made} == {cell.at["guessed"]}


# ---- how cells are timed and put into tables


def test_a_sweep_visits_every_cell_once_with_warm_up_and_what_comes_before():
    log, steps, seconds = [], [], count(1)

    def cell(place):
        def measure():
            log.append(("measure", place))
            return (float(next(seconds)),)

        noted = [lambda name=name: log.append((name, place)) for name in ("before", "end")]
        return Cell(("draft",), {"rows": place}, measure, *noted)

    rows = sweep([cell(place) for place in range(12)], Random(0), 2, 3, lambda: steps.append(1))
    assert len(rows) == len(steps) == 12
    assert all(len(row["seconds"]) == 3 for row in rows)
    assert [kind for kind, _ in log] == [*["before", "measure"] * 5, "end"] * 12
    assert all(len({place for _, place in log[start : start + 11]}) == 1 for start in range(0, 132, 11)), "not mixed"
    assert rows[0]["seconds"] == [3.0, 4.0, 5.0]  # the warm-up's calls 1 and 2 are left out


def test_tables_hold_median_and_quartiles_of_the_calls_of_all_sweeps():
    places = [(2, 64), (1, 64), (1, 8), (2, 8)]  # in the order of visits, not of the grid
    rows = [
        {"table": "draft", "at": {"rows": row, "context": context}, "seconds": [row + context, row + context + 4.0]}
        for row, context in places
    ]
    again = [{**row, "seconds": [seconds + 1 for seconds in row["seconds"]]} for row in rows[::-1]]
    table = tables_of(rows + again)["draft"]
    assert {name: list(grid) for name, grid in table.axes.items()} == {"rows": [1, 2], "context": [8, 64]}
    assert table.calls == 4
    for row, context in places:  # seconds: s, s + 1, s + 4, s + 5
        latency = table.at(rows=row, context=context)
        base = row + context
        assert (latency.low, latency.seconds, latency.high) == (base + 0.75, base + 2.5, base + 4.25)


def test_a_cells_new_calls_replace_its_old_ones_and_no_others():
    rows = [{"table": "draft", "at": {"rows": place}, "seconds": [float(place)]} for place in (1, 2, 1, 2)]
    again = [{"table": "draft", "at": {"rows": 2}, "seconds": [seconds]} for seconds in (8.0, 9.0)]
    table = tables_of(replaced(rows, again))["draft"]
    assert table.calls == 2 and table.median.tolist() == [1.0, 8.5]


def test_the_scheduler_is_asked_of_every_thread(tmp_path):
    for thread, text in (("7", "5000000000 1500000000 12\n"), ("8", "1 250000000 1\n")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert seconds_waited(tmp_path) == 1.75
    assert seconds_waited(tmp_path / "no such system") == 0.0
