"""The cells of bare Hugging Face, beside which the compact forward's passes are timed."""

import pytest
import torch

from runtime import ModelPair
from runtime.latency import LatencyConfig
from runtime.latency.passes import pass_cells
from tests.toys import tiny_llama


@pytest.fixture
def compact():
    return ModelPair(tiny_llama(64, seed=0), tiny_llama(64, seed=1, layers=1))


GRID = LatencyConfig(reference_tokens=(1, 5), reference_rows=(1, 3), contexts=(4, 9))


def reference_cells(pair, config=GRID):
    cells = pass_cells(pair, config, torch.Generator().manual_seed(0))
    return [cell for cell in cells if cell.tables[0].endswith("_hugging_face")]


def note_forwards(pair, monkeypatch):
    """Notes every pass of the models' own forward: model, tokens, tokens in the cache before, and other arguments."""
    notes = []
    for name, wrapped in (("target", pair.target), ("draft", pair.draft)):

        def forward(*, input_ids, past_key_values, name=name, real=wrapped.model.forward, **others):
            notes.append((name, input_ids.shape[1], past_key_values.get_seq_length(), others))
            return real(input_ids=input_ids, past_key_values=past_key_values, **others)

        monkeypatch.setattr(wrapped.model, "forward", forward)
    return notes


@pytest.mark.parametrize("context", [4, 9])
@pytest.mark.parametrize(("table", "axis", "count"), [("draft", "rows", 3), ("target", "tokens", 5)])
def test_reference_cells_run_bare_hugging_face(compact, monkeypatch, table, axis, count, context):
    cells = reference_cells(compact)
    notes = note_forwards(compact, monkeypatch)
    (cell,) = [cell for cell in cells if cell.at == {axis: count, "context": context}]
    assert cell.tables == (f"{table}_hugging_face",)
    bare = {"use_cache": True}
    first_step = ("draft", 1, context, bare)
    for _ in range(2):  # a pass leaves nothing behind
        notes.clear()
        cell.before()
        assert notes == ([("target", 1, context, bare), first_step] if table == "draft" else [first_step])
        notes.clear()
        cell.measure()
        assert notes == [(table, count, context, bare)]


def test_a_pair_off_the_compact_forward_has_no_reference(compact):
    slow = ModelPair(compact.target.model, compact.draft.model, forward="hugging_face")
    for target, draft in ((slow.target, slow.draft), (compact.target, slow.draft), (slow.target, compact.draft)):
        assert not reference_cells(ModelPair(target, draft))
