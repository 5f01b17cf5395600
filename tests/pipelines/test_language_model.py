import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from pipelines.builtin import language_model
from pipelines.builtin.language_model import Recipe, Shape, held_out_loss, new_model, train
from pipelines.builtin.llama_forward import forward, rotary_table

SHAPE = Shape(hidden=32, layers=2, heads=4, feed_forward=48)
RECIPE = Recipe(steps=3, context=24, warm_up=0)
TOKENS = torch.randint(50, (2000,), generator=torch.Generator().manual_seed(0))


def randomised(shape: Shape = SHAPE, seed: int = 0) -> LlamaForCausalLM:
    model = new_model(shape, vocabulary=50, context=32, seed=seed)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.2)
    return model


def compact_logits(model: LlamaForCausalLM, tokens_BT: torch.Tensor) -> torch.Tensor:
    weights = dict(model.named_parameters())
    rotary = rotary_table(model.config, tokens_BT.shape[1], tokens_BT.device, model.dtype)
    return F.linear(forward(weights, model.config, tokens_BT, rotary), weights["model.embed_tokens.weight"])


def test_the_compact_forward_and_its_gradients_equal_hugging_faces():
    model = randomised()
    tokens_BT = TOKENS[:64].view(2, 32)
    gradients = []
    for logits in (model(tokens_BT).logits, compact_logits(model, tokens_BT)):
        F.cross_entropy(logits.flatten(0, 1), tokens_BT.flatten()).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.zero_grad()
    torch.testing.assert_close(compact_logits(model, tokens_BT), model(tokens_BT).logits, atol=1e-4, rtol=0)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("distilled", [False, True])
def test_training_is_deterministic_and_changes_every_weight(dtype, distilled):
    results = []
    for _ in range(2):
        model = new_model(SHAPE, vocabulary=50, context=32, seed=3)
        before = [parameter.clone() for parameter in model.parameters()]
        train(model, TOKENS, RECIPE, dtype, seed=4, teacher=randomised(Shape(16, 1, 2, 24)) if distilled else None)
        results.append([parameter.clone() for parameter in model.parameters()])
        assert model.dtype == dtype
        assert all(not torch.equal(old, new.float()) for old, new in zip(before, model.parameters(), strict=True))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_training_learns_and_distillation_comes_near_the_teacher():
    pattern = torch.arange(3000) % 7
    target = new_model(SHAPE, vocabulary=50, context=32, seed=0)
    train(target, pattern, Recipe(steps=60, context=24, warm_up=3), torch.float32, seed=0)
    draft = new_model(Shape(16, 1, 2, 24), vocabulary=50, context=32, seed=0)
    train(draft, pattern, Recipe(steps=80, context=24, warm_up=3), torch.float32, seed=0, teacher=target)
    assert held_out_loss(target, pattern, context=24) < 0.3
    assert held_out_loss(draft, pattern, context=24) < 0.6


def test_a_wall_clock_cap_ends_training_early_and_is_recorded():
    model = new_model(SHAPE, vocabulary=50, context=32, seed=0)
    training = train(model, TOKENS, Recipe(steps=100_000, context=24, max_minutes=0.01), torch.float32, seed=0)
    assert training.capped
    assert 0 < training.steps < 100_000
    assert training.seconds < 5


def test_schedule():
    recipe = Recipe(steps=100, warm_up=10)
    rates = [language_model._learning_rate(step, step / 100, recipe) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:50] == [1.0] * 40
    assert rates[75] == pytest.approx(0.51)
    assert rates[100] == pytest.approx(0.02)
