"""The number format is chosen by measurement: of a model's own matrix products, for the passes it will make."""

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MambaConfig, MambaForCausalLM, RwkvConfig

from runtime import ModelPair, dtype_choice
from runtime.dtype_choice import DRAFT_ROWS, FORMATS, LEAST_SAVING, REPEATS, TARGET_ROWS, fastest_dtype, matrix_shapes

CPU = torch.device("cpu")
CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
)
BLOCK = [(64, 32), (32, 32), (160, 32), (32, 80)]
MAMBA = MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1)


class Machine:
    """A clock and matrix products that it sees: each takes what ``cost`` says of its format, rows and number."""

    def __init__(self, cost):
        self.cost, self.now, self.calls = cost, 0.0, []

    def linear(self, inputs, matrix, bias):
        assert inputs.dtype == matrix.dtype
        self.calls.append((matrix.dtype, len(inputs), tuple(matrix.shape)))
        self.now += self.cost(matrix.dtype, len(inputs), len(self.calls))


@pytest.fixture
def machine(monkeypatch):
    def built(cost):
        machine = Machine(cost)
        monkeypatch.setattr(dtype_choice, "native_dtype", lambda device: torch.bfloat16)
        monkeypatch.setattr(dtype_choice, "linear", machine.linear)
        monkeypatch.setattr(dtype_choice, "perf_counter", lambda: machine.now)
        return machine

    return built


@pytest.mark.parametrize(
    ("rows", "expected"), [(DRAFT_ROWS, torch.float32), (TARGET_ROWS, torch.bfloat16)], ids=["draft", "target"]
)
def test_the_faster_format_for_the_passes_to_come(machine, rows, expected):
    """As on CPUs: one row is cheaper in float32, several are not."""
    machine(lambda dtype, count, number: count if dtype is torch.float32 else 2)
    assert fastest_dtype(CONFIG, CPU, rows) == expected


@pytest.mark.parametrize(
    ("saved", "expected"),
    [(LEAST_SAVING - 0.01, torch.bfloat16), (LEAST_SAVING + 0.01, torch.float32)],
    ids=["about as fast", "faster"],
)
def test_float32_must_win_clearly(machine, saved, expected):
    machine(lambda dtype, count, number: 1 - saved if dtype is torch.float32 else 1)
    assert fastest_dtype(CONFIG, CPU, DRAFT_ROWS) == expected


@pytest.mark.parametrize(("device", "native"), [("cuda", torch.bfloat16), ("cpu", torch.float32)])
def test_nothing_is_timed_where_there_is_nothing_to_weigh(machine, monkeypatch, device, native):
    idle = machine(lambda *call: 1)
    monkeypatch.setattr(dtype_choice, "native_dtype", lambda device: native)
    assert fastest_dtype(CONFIG, torch.device(device), TARGET_ROWS) == native
    assert not idle.calls


def test_the_products_timed_are_the_models_in_both_formats_in_turn(machine):
    busy = machine(lambda *call: 1)
    shapes = [*BLOCK * 3, (96, 32)]
    dtype_choice.matrix_seconds(matrix_shapes(CONFIG), (1, 5))
    turn = [(dtype, shape) for dtype in FORMATS for shape in shapes] * REPEATS
    assert busy.calls == [(dtype, count, shape) for count in (1, 5) for dtype, shape in turn]


def test_a_formats_time_is_its_quickest_turn(machine):
    """The turns take 100, 2, 3, …, and twice as long in float32."""
    took = [100, *range(2, REPEATS + 1)]
    machine(lambda dtype, count, number: took[(number - 1) // 2] * (2 if dtype is torch.float32 else 1))
    assert dtype_choice.matrix_seconds([(2, 3)], (1,)) == {torch.bfloat16: 2, torch.float32: 4}


def test_large_models_are_timed_by_some_of_their_layers(monkeypatch):
    blocks = sum(outputs * inputs for outputs, inputs in BLOCK)
    monkeypatch.setattr(dtype_choice, "MOST_BYTES", 4 * (8 * blocks + 96 * 32))
    assert matrix_shapes(LlamaConfig(**{**CONFIG.to_dict(), "num_hidden_layers": 9})) == [*BLOCK * 8, (96, 32)]


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "vocab_size": 32000},
        {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128},
        {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151936},
        {"hidden_size": 2**40, "intermediate_size": 2**42, "vocab_size": 2**50},
    ],
    ids=["7B", "405B", "large vocabulary", "absurd"],
)
def test_no_model_is_too_large_to_time(sizes):
    shapes = matrix_shapes(LlamaConfig(**{**CONFIG.to_dict(), "head_dim": 128, **sizes}))
    elements = [outputs * inputs for outputs, inputs in shapes]
    assert len(shapes) >= 5 and min(elements) > 0
    assert 0.5 * dtype_choice.MOST_BYTES < 4 * sum(elements) <= dtype_choice.MOST_BYTES


def test_other_families_are_timed_too():
    config = GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)
    assert matrix_shapes(config) == [(48, 16), (16, 16), (128, 16), (16, 64), (32, 16)]
    assert fastest_dtype(config, CPU, DRAFT_ROWS) in FORMATS


def changed(**sizes):
    config = LlamaConfig(**CONFIG.to_dict())
    for name, size in sizes.items():
        object.__setattr__(config, name, size)
    return config


@pytest.mark.parametrize(
    "config",
    [
        MAMBA,
        RwkvConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1),
        changed(intermediate_size=[80, 80, 96]),
        changed(intermediate_size=[]),
        changed(num_key_value_heads=[2, 2, 4]),
        changed(num_attention_heads=0),
        changed(head_dim={"full": 8}),
        changed(hidden_size=32.0),
    ],
    ids=["Mamba", "RWKV", "widths by layer", "no widths", "heads by layer", "no heads", "mapping", "fraction"],
)
def test_configs_of_another_form_get_the_native_format(machine, config):
    idle = machine(lambda *call: 1)
    assert fastest_dtype(config, CPU, DRAFT_ROWS) == torch.bfloat16
    assert not idle.calls


def test_models_that_cannot_decode_are_refused_by_name(tmp_path):
    MambaForCausalLM(MAMBA).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="MambaForCausalLM has linear_attention layers"):
        ModelPair.load(tmp_path, device="cpu")
