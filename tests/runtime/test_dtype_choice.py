"""The number format is chosen by measurement: of a model's own matrix products, for the passes it will make."""

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from runtime import dtype_choice
from runtime.dtype_choice import DRAFT_ROWS, TARGET_ROWS, fastest_dtype

CPU = torch.device("cpu")
CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
)


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setattr(dtype_choice, "native_dtype", lambda device: torch.bfloat16)


@pytest.mark.parametrize(
    ("rows", "expected"), [(DRAFT_ROWS, torch.float32), (TARGET_ROWS, torch.bfloat16)], ids=["draft", "target"]
)
def test_the_faster_format_for_the_passes_to_come(monkeypatch, native, rows, expected):
    """As on CPUs: one row is cheaper in float32, several are not."""
    cost = {torch.float32: lambda count: count, torch.bfloat16: lambda count: 2}
    monkeypatch.setattr(
        dtype_choice, "matrix_seconds", lambda config, dtype, rows: [cost[dtype](count) for count in rows]
    )
    assert fastest_dtype(CONFIG, CPU, rows) == expected


def test_nothing_is_timed_where_there_is_nothing_to_weigh(monkeypatch):
    monkeypatch.setattr(dtype_choice, "native_dtype", lambda device: torch.float32)
    monkeypatch.setattr(dtype_choice, "matrix_seconds", None)
    assert fastest_dtype(CONFIG, CPU, TARGET_ROWS) == torch.float32


def test_the_products_timed_are_the_models(monkeypatch):
    seen = []
    monkeypatch.setattr(dtype_choice, "linear", lambda rows, matrix, bias: seen.append((len(rows), *matrix.shape)))
    seconds = dtype_choice.matrix_seconds(CONFIG, torch.float32, (1, 5))
    assert len(seconds) == 2 and min(seconds) > 0
    block = [(64, 32), (32, 32), (160, 32), (32, 80)]
    sweep = [*block * 3, (96, 32)]
    repeats = dtype_choice.REPEATS + 1
    assert seen == [(1, *shape) for shape in sweep * repeats] + [(5, *shape) for shape in sweep * repeats]


def test_large_models_are_timed_by_some_of_their_layers(monkeypatch):
    monkeypatch.setattr(dtype_choice, "MOST_BYTES", 2 * 4 * 32 * (64 + 32 + 160 + 80))
    shapes = [tuple(matrix.shape) for matrix in dtype_choice._matrices(CONFIG, torch.float32)]
    assert shapes == [(64, 32), (32, 32), (160, 32), (32, 80)] * 2 + [(96, 32)]


def test_other_families_are_timed_too():
    config = GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)
    assert fastest_dtype(config, CPU, DRAFT_ROWS) in (torch.float32, torch.bfloat16)
