"""Models in wrappers: served by the one inside where it computes the same, else refused by name."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaForSequenceClassification, T5Config, T5ForConditionalGeneration

from runtime import ModelPair, build_decoder
from tests.toys import tiny_llama


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter, as LoRA puts it in place."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.down = nn.Linear(base_layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(nn.functional.dropout(x, 0.5, self.training)))


class PeftModel(nn.Module):
    """PEFT's interface; ``prefix``: prompt learning, of tokens in front of every text."""

    def __init__(self, model, prefix=()):
        super().__init__()
        self.base_model, self.prefix = model, list(prefix)

    def get_base_model(self):
        return self.base_model

    def forward(self, input_ids, **options):
        before = torch.tensor([self.prefix], dtype=torch.int64)
        logits = self.base_model(input_ids=torch.cat([before, input_ids], dim=1), **options)
        logits.logits = logits.logits[:, len(self.prefix) :]
        return logits


def with_lora():
    model = tiny_llama(seed=0)
    torch.manual_seed(3)
    for block in model.model.layers:
        block.self_attn.v_proj = Adapted(block.self_attn.v_proj)
    return PeftModel(model.train())


SERVED = {
    "compiled": lambda: torch.compile(tiny_llama(seed=0)),
    "compiled in place": lambda: [model := tiny_llama(seed=0), model.compile(backend="eager")][0],
    "PEFT": with_lora,
    "compiled PEFT": lambda: torch.compile(with_lora()),
    "PEFT in two wrappers": lambda: nn.DataParallel(torch.compile(with_lora())),
}


@pytest.mark.parametrize("named", SERVED)
def test_the_model_inside_is_served(named):
    pair = ModelPair(SERVED[named](), SERVED[named]())
    inner = pair.target.model
    right = inner.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=12, do_sample=False)[0, 3:].tolist()
    for config in ({"method": "speculative"}, {"method": "lookahead"}):
        assert build_decoder(pair, config).generate([1, 2, 3], max_new_tokens=12).tokens == right
    plain = tiny_llama(seed=0).generate(torch.tensor([[1, 2, 3]]), max_new_tokens=12, do_sample=False)[0, 3:].tolist()
    assert (right == plain) == ("PEFT" not in named), "the adapters count"


def test_adapters_without_effect_change_nothing():
    pair = ModelPair(PeftModel(tiny_llama(seed=0)))
    assert pair.target.model.generate is not None and pair.target.forward != "hugging_face"


class Flagged(PeftModel):
    active_peft_config = SimpleNamespace(is_prompt_learning=True)


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tiny_llama()


REFUSED = {
    "AveragedModel": lambda: torch.optim.swa_utils.AveragedModel(tiny_llama()),
    "PeftModel": lambda: PeftModel(tiny_llama(), prefix=[4, 5]),
    "Flagged": lambda: Flagged(tiny_llama()),
    "Foreign": Foreign,
    "LlamaModel": lambda: tiny_llama().model,
    "LlamaForSequenceClassification": lambda: LlamaForSequenceClassification(tiny_llama().config),
    "T5ForConditionalGeneration": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    ),
    "some/model": lambda: "some/model",
    "OrderedDict": lambda: tiny_llama().state_dict(),
    "type": lambda: type(tiny_llama()),
}


@pytest.mark.parametrize("named", REFUSED)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_what_computes_something_else_is_refused_by_name(named, role):
    models = {"target": tiny_llama(), "draft": tiny_llama(layers=1)} | {role: REFUSED[named]()}
    with pytest.raises(ValueError, match=named) as error:
        ModelPair(**models)
    assert "\n" not in str(error.value)
