"""What the cells of a latency profile call is what their tables say; nothing here looks at how long it takes."""

import re
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
import torch

from runtime import ModelPair
from runtime.latency import LatencyConfig, all_cells, sweep, tables_of
from runtime.latency.passes import CONTINUATION, pass_cells, prefill_cells
from tests.toys import TableModel, tiny_llama


def generator():
    return torch.Generator().manual_seed(0)


class NotedModel:
    """A model that notes its calls: forward (with committed tokens, nodes, parents, last), keep (path) and open (length)."""

    device, dtype, programs = torch.device("cpu"), torch.float64, None

    def __init__(self, name: str, notes: list, vocabulary_size: int = 8, context_limit: int = 100) -> None:
        self.model = TableModel(vocabulary_size, seed=0)
        self.name, self.notes = name, notes
        self.vocabulary_size, self.context_limit = vocabulary_size, context_limit

    def embedding(self, token):
        return self.model.embedding(token)

    def open(self, max_length, layers=()):
        state, name, notes = self.model.open(max_length), self.name, self.notes
        notes.append((name, "open", max_length))

        def forward(tokens, parents=None, last=None):
            notes.append((name, "forward", len(state.committed), len(tokens), parents, last))
            return state.forward(tokens, parents, last)

        def keep(path):
            notes.append((name, "keep", list(path)))
            state.keep(path)

        return SimpleNamespace(forward=forward, keep=keep)


BARE = LatencyConfig(reference_rows=(), reference_tokens=())
PASSES = replace(BARE, target_tokens=(1, 4), draft_rows=(1, 3), contexts=(3, 7), prefill_tokens=(2, 5))


@pytest.fixture
def notes():
    return []


@pytest.fixture
def models(notes):
    return NotedModel("target", notes), NotedModel("draft", notes)


@pytest.mark.parametrize("context", [3, 7])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_draft_cell_times_one_level_after_an_untimed_pass_of_the_target_and_a_first_step(
    models, notes, rows, context
):
    cells = pass_cells(ModelPair(*models), PASSES, generator())
    (cell,) = [cell for cell in cells if cell.at == {"rows": rows, "context": context}]
    assert cell.tables == ("draft",)
    for _ in range(2):  # a pass leaves nothing behind
        notes.clear()
        cell.before()
        target_pass = [("target", "forward", context, 1, None, None), ("target", "keep", [])]
        assert notes == [*target_pass, ("draft", "forward", context, 1, None, None), ("draft", "keep", [])]
        notes.clear()
        assert len(cell.measure()) == 1
        parents = None if rows == 1 else [-1] * rows
        assert notes == [("draft", "forward", context, rows, parents, None), ("draft", "keep", [])]


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_target_cell_times_one_chain_after_an_untimed_step_of_the_draft(models, notes, tokens):
    cells = pass_cells(ModelPair(*models), PASSES, generator())
    (cell,) = [cell for cell in cells if cell.at == {"tokens": tokens, "context": 7}]
    assert cell.tables == ("target",)
    notes.clear()
    cell.before()
    assert notes == [("draft", "forward", 7, 1, None, None), ("draft", "keep", [])]
    notes.clear()
    cell.measure()
    assert notes == [("target", "forward", 7, tokens, None, None), ("target", "keep", [])]


@pytest.mark.parametrize(("name", "own", "other"), [("target", 0, 1), ("draft", 1, 0)])
def test_a_prefill_cell_opens_runs_and_commits_a_prompt(models, notes, name, own, other):
    cells = prefill_cells(ModelPair(*models), PASSES, generator())
    (cell,) = [cell for cell in cells if cell.tables == (f"{name}_prefill",) and cell.at == {"tokens": 5}]
    notes.clear()
    cell.before()
    assert [note[:2] for note in notes] == [(models[other].name, "forward"), (models[other].name, "keep")]
    notes.clear()
    cell.measure()
    assert notes == [
        (name, "open", 5 + CONTINUATION),
        (name, "forward", 0, 5, None, 1),
        (name, "keep", [0, 1, 2, 3, 4]),
    ]
    assert models[own].name == name


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
        "reading": {"entropy": [0, 1]},
        "plain": {"context": [90]},
        "predictor": {"features": [16, 32]},
        "selection": {"features": [0, 96]},
        "stopping": {"features": [11, 32]},
        "survival": {"positions": [1, 4]},
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
    assert {cell.at["context"] for cell in cells if "context" in cell.at} == {4, 77}
    for limit, name in ((95, "target"), (80, "draft")):
        lengths = [note[2] for note in notes if note[:2] == (name, "open")]
        assert max(lengths) <= limit
        assert max(note[2] + note[3] for note in notes if note[:2] == (name, "forward")) <= limit


def test_models_too_short_for_the_grid_are_refused(notes):
    pair = ModelPair(NotedModel("target", notes, context_limit=5), NotedModel("draft", notes))
    with pytest.raises(ValueError, match=r"1 tokens too short.*latency\.target_tokens"):
        all_cells(pair, SMALL)


def test_of_a_pair_without_a_draft_the_target_is_timed_alone():
    pair = ModelPair(tiny_llama(80, seed=0))
    cells, _ = all_cells(pair, SMALL)
    tables = {table for cell in cells for table in cell.tables}
    for cell in cells:
        cell.before()
        assert all(seconds > 0 for seconds in cell.measure())
    assert tables >= {"target", "target_prefill", "plain", "guessing", "chain_verification", "tree_verification"}
    assert not any(name.startswith(("draft", "branch")) for name in tables)


def test_vocabularies_too_small_for_the_trees_are_refused(notes):
    pair = ModelPair(NotedModel("target", notes, vocabulary_size=2), NotedModel("draft", notes, vocabulary_size=2))
    message = r"tree_paths=3 .* over 2 tokens\. Set latency\.tree_paths to 2 or fewer"
    with pytest.raises(ValueError, match=message):
        all_cells(pair, SMALL)
