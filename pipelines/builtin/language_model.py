"""Llama-shaped language models trained from scratch in minutes on a CPU, as plain Hugging Face models.

The training loop runs its own forward over the Hugging Face module's parameters, because there a step is mostly attention
bookkeeping; the function is the same (tests compare the logits). Weights are kept in float32 and rounded to the training dtype
before every step; the finished model holds the rounded weights, so every dtype loads the function that was trained.

Shape suffixes: B batch, T context, H heads, D head dimension, C hidden, V vocabulary.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from pipelines.builtin.llama_forward import forward, logits, rotary_table
from pipelines.builtin.muon import Muon
from predictors.config import Checked, Count, Positive, at_least

END_OF_TEXT_ID = 0


@dataclass(frozen=True)
class Shape:
    """Size of a Llama-shaped model; heads are as wide as hidden / heads and not grouped."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.hidden // self.heads % 2:
            raise ValueError(f"hidden {self.hidden} must be an even multiple of heads {self.heads}.")


@dataclass(frozen=True)
class Recipe(Checked):
    """How a model is trained: Muon for matrices, AdamW for the embedding and norms, one learning-rate schedule for both."""

    steps: Count
    batch: Count = 4
    context: Annotated[int, at_least(2)] = 512
    matrix_lr: float = 0.02
    matrix_momentum: float = 0.95
    matrix_weight_decay: float = 0.05
    vector_lr: float = 0.01
    warm_up: int = 30
    final_lr_share: float = 0.02
    max_minutes: Positive | None = None


@dataclass(frozen=True)
class Training:
    """What a training run did; ``capped`` says that the wall-clock cap shortened it."""

    steps: int
    capped: bool
    seconds: float


def new_model(shape: Shape, vocabulary: int, context: int, seed: int) -> LlamaForCausalLM:
    """A freshly initialised model in float32 whose layers start as the identity (o_proj = down_proj = 0)."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.hidden // shape.heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=None,
        dtype=torch.float32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def train(
    model: LlamaForCausalLM,
    tokens: Tensor,
    recipe: Recipe,
    dtype: torch.dtype,
    seed: int,
    teacher: LlamaForCausalLM | None = None,
    name: str = "model",
) -> Training:
    """Train ``model`` in place on a stream of tokens.

    Loss: cross-entropy to the next token or, with a teacher, to the teacher's whole next-token law (distillation).

    Parameters
    ----------
    model
        In float32 on its device; returned in ``dtype``.
    tokens
        int64 ``[N]``, documents one after the other with the end-of-text token between them.
    recipe
        ``steps`` define the result. ``max_minutes`` ends training early; the schedule then runs on whichever of the two
        shares, of steps or of time, is further on, so a capped run still ends at the lowest learning rate.
    dtype
        Of weights and activations in the forward; the optimizer's weights are float32.
    """
    device = next(model.parameters()).device
    masters = dict(model.named_parameters())
    weights = {key: value.detach().to(dtype, copy=True).requires_grad_() for key, value in masters.items()}
    teacher_weights = None if teacher is None else {key: w.detach().to(dtype) for key, w in teacher.named_parameters()}
    rotary = rotary_table(model.config, recipe.context, device, dtype)
    optimizers = _optimizers(masters, recipe, dtype)
    rows = _training_rows(tokens, recipe, seed)
    cap = math.inf if recipe.max_minutes is None else recipe.max_minutes * 60
    start, capped, done, loss_sum = time.perf_counter(), False, 0, 0.0
    with tqdm(total=recipe.steps, desc=f"train {name}", unit="step", mininterval=1.0, disable=None) as progress:
        while done < recipe.steps:
            time_share = (time.perf_counter() - start) / cap
            if time_share >= 1:
                capped = True
                break
            share = max(done / recipe.steps, time_share)
            capped = capped or time_share > max(0.5, done / recipe.steps)
            rows_BT = next(rows).to(device)
            loss = _loss(weights, model.config, rows_BT, rotary, teacher, teacher_weights)
            loss.backward()
            _update(masters, weights, optimizers, _learning_rate(done, share, recipe))
            done += 1
            loss_sum = loss.item() if done == 1 else 0.95 * loss_sum + 0.05 * loss.item()
            progress.update()
            progress.set_postfix(loss=f"{loss_sum:.3f}", refresh=False)
    with torch.no_grad():
        model.to(dtype)
        for key, parameter in model.named_parameters():
            parameter.copy_(weights[key])
    return Training(steps=done, capped=capped, seconds=time.perf_counter() - start)


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, tokens: Tensor, context: int, max_rows: int = 64) -> float:
    """Mean next-token cross-entropy in nats over ``max_rows`` rows spread evenly over ``tokens``."""
    device, dtype = model.device, model.dtype
    rows = _cut_rows(tokens, context, offset=0)
    rows = rows[torch.linspace(0, len(rows) - 1, min(max_rows, len(rows))).long()]
    weights = dict(model.named_parameters())
    rotary = rotary_table(model.config, context, device, dtype)
    losses = []
    for row_BT in rows.split(4):
        hidden_BTC = forward(weights, model.config, row_BT[:, :-1].to(device), rotary)
        logits_NV = (hidden_BTC @ weights["model.embed_tokens.weight"].T).float().flatten(0, 1)
        losses.append(F.cross_entropy(logits_NV, row_BT[:, 1:].to(device).flatten(), reduction="none"))
    return torch.cat(losses).mean().item()


def _loss(
    weights: dict[str, Tensor],
    config: LlamaConfig,
    rows_BT: Tensor,
    rotary: tuple[Tensor, Tensor],
    teacher: LlamaForCausalLM | None,
    teacher_weights: dict[str, Tensor] | None,
) -> Tensor:
    logprobs = logits(weights, config, rows_BT, rotary).log_softmax(-1, dtype=torch.float32)
    if teacher is None or teacher_weights is None:
        return F.nll_loss(logprobs, rows_BT[:, 1:].flatten())
    with torch.no_grad():
        table = rotary if teacher.config.head_dim == config.head_dim else None
        table = table or rotary_table(teacher.config, rows_BT.shape[1] - 1, rows_BT.device, rotary[0].dtype)
        teacher_probs = logits(teacher_weights, teacher.config, rows_BT, table).softmax(-1, dtype=torch.float32)
    return -torch.dot(teacher_probs.flatten(), logprobs.flatten()) / len(logprobs)


def _optimizers(
    masters: dict[str, Tensor], recipe: Recipe, dtype: torch.dtype
) -> list[tuple[torch.optim.Optimizer, float]]:
    matrices = [w for key, w in masters.items() if w.ndim == 2 and "embed_tokens" not in key]
    others = [w for key, w in masters.items() if w.ndim == 1 or "embed_tokens" in key]
    muon = Muon(matrices, recipe.matrix_lr, recipe.matrix_momentum, recipe.matrix_weight_decay, dtype=dtype)
    adamw = torch.optim.AdamW(others, lr=recipe.vector_lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [(muon, recipe.matrix_lr), (adamw, recipe.vector_lr)]


def _learning_rate(step: int, share: float, recipe: Recipe) -> float:
    """Share of the full rate: linear warm-up, constant to half of the run, linear to ``final_lr_share``."""
    decay = 1.0 if share < 0.5 else recipe.final_lr_share + (1 - recipe.final_lr_share) * 2 * (1 - share)
    return min(decay, (step + 1) / recipe.warm_up) if recipe.warm_up else decay


@torch.no_grad()
def _update(
    masters: dict[str, Tensor],
    weights: dict[str, Tensor],
    optimizers: list[tuple[torch.optim.Optimizer, float]],
    rate: float,
) -> None:
    for key, master in masters.items():
        gradient = weights[key].grad
        assert gradient is not None
        master.grad = gradient.to(master.dtype)
        weights[key].grad = None
    for optimizer, full_rate in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = full_rate * rate
        optimizer.step()
    for key, master in masters.items():
        weights[key].copy_(master)


def _training_rows(tokens: Tensor, recipe: Recipe, seed: int) -> Iterator[Tensor]:
    """Batches ``[B, T + 1]``: passes over the stream cut into rows, each pass shifted and shuffled anew."""
    generator = torch.Generator().manual_seed(seed)
    if len(tokens) < 2 * recipe.context + 1:
        raise ValueError(f"{len(tokens)} tokens are too few to train on: a row of context {recipe.context} needs more.")
    while True:
        offset = int(torch.randint(recipe.context, (), generator=generator))
        rows = _cut_rows(tokens, recipe.context, offset)
        order = torch.randperm(len(rows), generator=generator)
        for batch in order.split(recipe.batch):
            yield rows[batch]


def _cut_rows(tokens: Tensor, context: int, offset: int) -> Tensor:
    """Rows of ``context + 1`` tokens; the last token of a row is the first of the next."""
    if len(tokens) <= offset + context:
        raise ValueError(f"{len(tokens)} tokens do not fill one row of context {context}.")
    return tokens[offset:].unfold(0, context + 1, context)
