"""What the cells of a latency profile call is what their tables say; nothing here looks at how long it takes."""

import re
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
import torch

from runtime import ModelPair, Randomness, build_decoder
from runtime.audit.tables import TableModel
from runtime.eagle3.drafter import Eagle3State
from runtime.latency import LatencyConfig, all_cells, sweep, tables_of
from runtime.latency.passes import CONTINUATION, pass_cells, prefill_cells
from tests.eagle3 import random_drafter
from tests.toys import tiny_llama


def generator():
    return torch.Generator().manual_seed(0)


class NotedModel(TableModel):
    """A model that notes its calls: forward (with committed tokens, nodes, parents, last), keep (path) and open (length)."""

    def __init__(self, name: str, notes: list, context_limit: int = 100) -> None:
        super().__init__(8, seed=0)
        self.name, self.notes, self.context_limit = name, notes, context_limit

    def open(self, max_length, layers=()):
        state, name, notes = super().open(max_length), self.name, self.notes
        notes.append((name, "open", max_length))

        def forward(tokens, parents=None, last=None):
            notes.append((name, "forward", len(state.committed), len(tokens), parents, last))
            return state.forward(tokens, parents, last)

        def keep(path, pending=0):
            notes.append((name, "keep", list(path)))
            state.keep(path, pending)

        return SimpleNamespace(forward=forward, keep=keep)


BARE = LatencyConfig(reference_rows=(), reference_tokens=())
PASSES = replace(BARE, target_tokens=(1, 4), draft_rows=(1, 3), contexts=(3, 7), prefill_tokens=(2, 5))


@pytest.fixture
def notes():
    return []


@pytest.fixture
def models(notes):
    return NotedModel("target", notes), NotedModel("draft", notes)


DRAFT_STEP = [("draft", "forward", 7, 1, None, None), ("draft", "keep", [])]
TARGET_PASS = [("target", "forward", 7, 1, None, None), ("target", "keep", [])]
CALLS = [  # table, place, what is called untimed, and timed
    ("draft", {"rows": 1}, TARGET_PASS + DRAFT_STEP, DRAFT_STEP),
    ("draft", {"rows": 3}, TARGET_PASS + DRAFT_STEP, [("draft", "forward", 7, 3, [-1] * 3, None), DRAFT_STEP[1]]),
    ("target", {"tokens": 1}, DRAFT_STEP, TARGET_PASS),
    ("target", {"tokens": 4}, DRAFT_STEP, [("target", "forward", 7, 4, None, None), TARGET_PASS[1]]),
]


@pytest.mark.parametrize(("table", "place", "untimed", "timed"), CALLS, ids=str)
def test_a_cell_times_one_pass_after_untimed_ones_of_both_models(models, notes, table, place, untimed, timed):
    cells = pass_cells(ModelPair(*models), PASSES, generator())
    (cell,) = [cell for cell in cells if cell.at == place | {"context": 7}]
    assert cell.tables == (table,)
    for _ in range(2):  # a pass leaves nothing behind
        notes.clear()
        cell.before()
        assert notes == untimed
        notes.clear()
        assert len(cell.measure()) == 1
        assert notes == timed


@pytest.mark.parametrize(("name", "other"), [("target", "draft"), ("draft", "target")])
def test_a_prefill_cell_opens_runs_and_commits_a_prompt(models, notes, name, other):
    cells = prefill_cells(ModelPair(*models), PASSES, generator())
    (cell,) = [cell for cell in cells if cell.tables == (f"{name}_prefill",) and cell.at == {"tokens": 5}]
    notes.clear()
    cell.before()
    assert [note[:2] for note in notes] == [(other, "forward"), (other, "keep")]
    notes.clear()
    cell.measure()
    assert notes == [(name, "open", 5 + CONTINUATION), (name, "forward", 0, 5, None, 1), (name, "keep", [*range(5)])]


@pytest.fixture
def compact():
    return ModelPair(tiny_llama(64, seed=0), tiny_llama(64, seed=1, layers=1))


SMALL = LatencyConfig(
    draft_rows=(1, 3),
    target_tokens=(1, 2, 5),
    reference_rows=(1,),
    reference_tokens=(1, 5),
    contexts=(4, 90),
    prefill_tokens=(8, 80),
    drafted=(0, 2),
    tree_nodes=(3, 6),
    tree_rules=("specinfer",),
    branch_rows=(1, 4),
    guessed=(2, 9),
    features=(16, 32),
)


def test_all_tables_have_all_their_cells(compact):
    cells, notes = all_cells(compact, SMALL)
    tables = tables_of(sweep(cells, Random(0), 0, 2, lambda: None))
    assert not notes
    contexts, sampled = {"context": [4, 90]}, {"sampled": [0, 1]}
    assert {name: {axis: list(grid) for axis, grid in table.axes.items()} for name, table in tables.items()} == {
        "draft": {"rows": [1, 3], **contexts},
        "target": {"tokens": [1, 2, 5], **contexts},
        "draft_hugging_face": {"rows": [1], **contexts},
        "target_hugging_face": {"tokens": [1, 5], **contexts},
        "draft_prefill": {"tokens": [8, 80]},
        "target_prefill": {"tokens": [8, 80]},
        "chain_drawing": {"drafted": [2], **sampled},
        "chain_verification": {"drafted": [0, 2], **sampled},
        "tree_drawing": {"drafted": [3, 6], **sampled},
        "tree_verification": {"drafted": [3, 6], **sampled},
        "verification_specinfer": {"drafted": [3, 6]},
        "branch_candidates": {"rows": [1, 4], **sampled},
        "branch_drawing": {"rows": [1, 4], **sampled},
        "branch_verdict": {"candidates": [1, 4], **sampled},
        "guessing": {"guessed": [2, 9]},
        "noise": {"rows": [1, 8]},
        "reading": {"entropy": [0, 1]},
        "plain": {"context": [90]},
        "predictor": {"features": [16, 32]},
        "selection": {"features": [0, 96]},
        "stopping": {"features": [11, 32]},
        "survival": {"positions": [1, 4]},
        "grow": {"levels": [1, 4]},
    }
    assert {table.calls for table in tables.values()} == {2}


def test_a_pass_waits_for_the_device_of_the_model_that_runs(models, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    for index, model in enumerate(models):
        model.device = torch.device("cuda", index)
    passes = pass_cells(ModelPair(*models), PASSES, generator())
    for cell in passes + prefill_cells(ModelPair(*models), PASSES, generator()):
        waited.clear()
        cell.measure()
        running = models[cell.tables[0].startswith("draft")]
        assert waited == [running.device] * 2


def test_contexts_and_prompts_are_cut_to_what_the_models_hold(notes):
    pair = ModelPair(NotedModel("target", notes, context_limit=95), NotedModel("draft", notes, context_limit=80))
    cells, cut = all_cells(pair, SMALL)
    sweep(cells, Random(0), 0, 1, lambda: None)
    assert [(note.split()[0], *re.findall(r"\d+", note)) for note in cut] == [
        ("contexts", "90", "77"),  # the draft's 80 less 3 rows
        ("prefill_tokens", "80", "16"),
    ]
    plain = 40  # with room for as many new tokens
    assert {cell.at["context"] for cell in cells if "context" in cell.at} == {4, plain, 77}
    for limit, name in ((95, "target"), (80, "draft")):
        lengths = [note[2] for note in notes if note[:2] == (name, "open")]
        assert max(lengths) <= limit
        assert max(note[2] + note[3] for note in notes if note[:2] == (name, "forward")) <= limit


def test_of_a_pair_without_a_draft_the_target_is_timed_alone():
    pair = ModelPair(tiny_llama(80, seed=0))
    cells, _ = all_cells(pair, SMALL)
    tables = {table for cell in cells for table in cell.tables}
    for cell in cells:
        cell.before()
        assert all(seconds > 0 for seconds in cell.measure())
    assert tables >= {"target", "target_prefill", "plain", "guessing", "chain_verification", "tree_verification"}
    assert not any(name.startswith(("draft", "branch")) for name in tables)


# ---- bare Hugging Face, beside which the compact forward's passes are timed


def reference_cells(pair):
    cells = pass_cells(pair, LatencyConfig(reference_tokens=(5,), reference_rows=(3,), contexts=(9,)), generator())
    return [cell for cell in cells if cell.tables[0].endswith("_hugging_face")]


def test_reference_cells_run_bare_hugging_face(compact, monkeypatch):
    """Notes every pass of the models' own forward: model, tokens, tokens in the cache before, and other arguments."""
    cells, notes = reference_cells(compact), []
    for name, wrapped in (("target", compact.target), ("draft", compact.draft)):

        def forward(*, input_ids, past_key_values, name=name, real=wrapped.model.forward, **others):
            notes.append((name, input_ids.shape[1], past_key_values.get_seq_length(), others))
            return real(input_ids=input_ids, past_key_values=past_key_values, **others)

        monkeypatch.setattr(wrapped.model, "forward", forward)
    bare = {"use_cache": True}
    first_step = ("draft", 1, 9, bare)
    before = {"draft": [("target", 1, 9, bare), first_step], "target": [first_step]}
    for cell, (table, count) in zip(cells, (("draft", 3), ("target", 5)), strict=True):
        assert cell.tables == (f"{table}_hugging_face",)
        for _ in range(2):  # a pass leaves nothing behind
            notes.clear()
            cell.before()
            assert notes == before[table]
            notes.clear()
            cell.measure()
            assert notes == [(table, count, 9, bare)]


def test_a_pair_off_the_compact_forward_has_no_reference(compact):
    slow = ModelPair(compact.target.model, compact.draft.model, forward="hugging_face")
    for target, draft in ((slow.target, slow.draft), (compact.target, slow.draft), (slow.target, compact.draft)):
        assert not reference_cells(ModelPair(target, draft))


# ---- a draft that reads its target's states


@pytest.fixture
def reading():
    target = tiny_llama(64, seed=0, layers=3)
    return ModelPair(target, random_drafter(target))


def test_a_draft_that_reads_states_has_all_tables_and_one_of_first_passes(reading, compact):
    kinds = [{table for cell in all_cells(pair, SMALL)[0] for table in cell.tables} for pair in (reading, compact)]
    assert kinds[0] == kinds[1] - {"draft_hugging_face", "target_hugging_face"} | {"draft_first"}
    cells, _ = all_cells(reading, SMALL)
    tables = tables_of(sweep(cells, Random(0), 0, 2, lambda: None))
    assert {axis: list(grid) for axis, grid in tables["draft_first"].axes.items()} == {
        "rows": [1, 3],
        "context": [4, 90],
    }
    assert all((table.low > 0).all() for table in tables.values())


def note_states(monkeypatch):
    """Notes what is done with states of a draft that reads: offered rows, passes, kept nodes."""
    notes = []
    for name, note in (
        ("offer", lambda hidden_NKD: list(hidden_NKD.shape)),
        ("forward", lambda tokens, parents=None, last=None: (len(tokens), parents, last)),
        ("keep", lambda path, pending=0: list(path)),
    ):
        real = getattr(Eagle3State, name)

        def noted(self, *given, name=name, note=note, real=real, **named):
            notes.append((name, note(*given, **named)))
            return real(self, *given, **named)

        monkeypatch.setattr(Eagle3State, name, noted)
    return notes


@pytest.mark.parametrize("count", [1, 3])
def test_a_first_pass_is_a_rounds_own(reading, monkeypatch, count):
    (cell,) = [
        cell
        for cell in pass_cells(reading, SMALL, generator())
        if cell.tables == ("draft_first",) and cell.at == {"rows": count, "context": 4}
    ]
    notes = note_states(monkeypatch)
    cell.before()
    assert not notes, "a round's first pass meets what the target left in the caches"
    cell.measure()
    offered, fed = ("offer", [count, 3, 32]), ("forward", (count, None, 1))
    assert notes == [offered, fed, ("keep", [])]
    notes.clear()
    decoder = build_decoder(reading, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}})
    chance = Randomness(0)
    made = decoder.generate([5, 6, 7], max_new_tokens=60, temperature=1.0, randomness=chance, eos_token_id=[]).rounds
    assert {1, 3} <= {1 + record.accepted for record in made[1:-1]}
    place = notes.index(offered, 3)  # behind the prefill
    assert notes[place : place + 3] == [offered, ("keep", []), fed]


def test_a_prefill_offers_states_in_front_of_every_token_but_the_first(reading, monkeypatch):
    """A prompt of one token has no such token."""
    cells = prefill_cells(reading, replace(SMALL, prefill_tokens=(1, 8)), generator())
    assert all(cell.measure()[0] > 0 for cell in cells)
    (cell,) = [cell for cell in cells if cell.at == {"tokens": 8}][:1]
    assert cell.tables == ("draft_prefill",)
    notes = note_states(monkeypatch)
    cell.measure()
    assert notes == [("offer", [8, 3, 32]), ("forward", (7, None, 1)), ("keep", [0, 1, 2, 3, 4, 5, 6])]
    notes.clear()
    build_decoder(reading, {"method": "speculative"}).generate(list(range(8)), max_new_tokens=1)
    assert notes[:3] == [("offer", [8, 3, 32]), ("forward", (7, None, 1)), ("keep", [0, 1, 2, 3, 4, 5, 6])]
