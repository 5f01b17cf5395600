"""Cells of plain decoding: the real decoder, behind the context they name."""

import torch

from runtime import ModelPair, causal_model
from runtime.latency import rounds as module
from runtime.latency.rounds import TOKENS, plain_cells
from tests.toys import tiny_llama

CONTEXT = 12


def cells(context=CONTEXT):
    pair = ModelPair(target=tiny_llama(32, seed=0, layers=2), draft=tiny_llama(32, seed=1, layers=1))
    return pair, plain_cells(pair, context, torch.Generator().manual_seed(0))


def test_a_call_times_some_tokens_and_requests_begin_anew_before_they_end(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 12)  # the prefill's, and twice one untimed and four timed
    pair, (cell,) = cells()
    assert (cell.tables, cell.at) == (("plain",), {"context": CONTEXT})
    opened, real = [], pair.target.open
    monkeypatch.setattr(pair.target, "open", lambda *given: opened.append(given) or real(*given))
    work = []
    monkeypatch.setattr(module, "seconds_of", lambda run, device: work.append(run()) or 6.0)
    for _ in range(4):
        cell.before()
        assert cell.measure() == (6.0 / TOKENS,)
    assert len(work) == 4 and len(opened) == 2, "two calls fit a request"


def test_a_new_request_takes_the_memory_of_the_last_one(monkeypatch):
    """A second one's programs would be recorded while its tokens are timed."""
    made, real = [], causal_model.Slot
    monkeypatch.setattr(module, "LONGEST", 12)
    monkeypatch.setattr(causal_model, "Slot", lambda *given: made.append(given) or real(*given))
    pair = ModelPair(tiny_llama(32, seed=0), forward="graphed")
    (cell,) = plain_cells(pair, CONTEXT, torch.Generator().manual_seed(0))
    for _ in range(8):
        cell.before()
        cell.measure()
    assert len(made) == 1, "of four requests"
