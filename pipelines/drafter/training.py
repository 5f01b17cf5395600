r"""Training an EAGLE-3 drafter: towards the target's distribution, several drafted tokens deep.

    loss = sum_i decay^i mean_t KL(p(· | text to t + 1 + i) || q_i,t),   both over the drafter's own ids

Muon (Jordan et al. 2024) takes the layer's matrices, AdamW the head and the norms; one schedule for both: warm-up, constant,
linear to zero. Source: Li et al. 2025 (training-time test); specification of feature drafts, section 3. Muon's update:

    B <- mu B + (1 - mu) G;    U = (1 - mu) G + mu B  (Nesterov);    W <- (1 - lr wd) W - lr sqrt(max(1, rows / columns)) NS(U)

NS is five quintic Newton-Schulz steps, X <- a X + (b A + c A A) X with A = X X^T, which push every singular value towards 1.
`torch.optim.Muon` computes the same, matrix by matrix and always in bfloat16, which takes seconds per step on a CPU that has no
bfloat16 units. Here matrices of one shape (or its transpose) are orthogonalised as one batch, in a dtype the caller chooses.

Shape suffixes: B texts, L positions, K tapped layers, C hidden size, U ids of the drafter's own vocabulary.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

from pipelines.drafter.network import DrafterNetwork
from pipelines.drafter.recipe import DrafterRecipe
from pipelines.drafter.texts import StatedText, batches
from predictors.training.trainer import OneProcess

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

import math
from collections.abc import Iterable

QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for matrices; give vectors and embeddings to AdamW."""

    def __init__(
        self,
        matrices: Iterable[Tensor],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        num_iterations: int = 5,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "num_iterations": num_iterations}
        super().__init__(list(matrices), defaults)
        self.dtype = dtype
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.ndim != 2:
                    raise ValueError(f"Muon takes matrices, got a parameter of shape {tuple(matrix.shape)}.")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            batches: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    update = self._momentum(matrix, group["momentum"])
                    wide = update if update.shape[0] <= update.shape[1] else update.T
                    batches.setdefault((wide.shape[0], wide.shape[1]), []).append((matrix, wide))
            for batch in batches.values():
                updates = orthogonalise(torch.stack([wide for _, wide in batch]), group["num_iterations"], self.dtype)
                for (matrix, _), update in zip(batch, updates, strict=True):
                    rows, columns = matrix.shape
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(
                        update if rows <= columns else update.T,
                        alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)),
                    )

    def _momentum(self, matrix: Tensor, momentum: float) -> Tensor:
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        state["momentum"].lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(state["momentum"], momentum)  # type: ignore[union-attr]


def orthogonalise(matrices: Tensor, num_iterations: int, dtype: torch.dtype) -> Tensor:
    """Newton-Schulz iteration on a batch of matrices ``[N, rows, columns]`` with rows <= columns; returned in ``dtype``."""
    a, b, c = QUINTIC
    X = matrices.to(dtype)
    X = X / X.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(num_iterations):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X


def vocabulary(texts: Sequence[StatedText], wanted: int, size: int) -> Tensor:
    """The target's ``wanted`` ids that answers hold most often, then those of prompts, ascending."""
    counts: Counter[int] = Counter()
    for text in texts:
        answers, prompts = text.tokens[text.start :].tolist(), text.tokens[: text.start].tolist()
        counts.update({token: 1000 * count for token, count in Counter(answers).items()})
        counts.update(prompts)
    counts.update(dict.fromkeys(range(size), 0))
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(ranked[:wanted]))


Batch = tuple[Tensor, Tensor, Tensor, Tensor]  # as `padded` makes it


class TextPasses(IterableDataset[Batch]):
    """Batches of one pass over the texts, shuffled anew by every epoch's number; without a ``seed``, to judge by: of answers
    alone, in their order."""

    def __init__(self, texts: Sequence[StatedText], recipe: DrafterRecipe, seed: int | None) -> None:
        self.texts, self.recipe, self.seed, self.epoch = texts, recipe, seed, 0

    def __iter__(self) -> Iterator[Batch]:
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed + self.epoch)
        for batch in batches(self.texts, self.recipe.positions, self.recipe.context, generator):
            yield padded(batch, self.recipe.depths, answers=self.seed is None)

    @property
    def steps(self) -> int:
        return sum(1 for _ in batches(self.texts, self.recipe.positions, self.recipe.context, None))


class DrafterTraining(L.LightningModule):
    """The loss of a `DrafterNetwork`, optimised by hand as two optimisers share a step. ``native``: bfloat16 products."""

    automatic_optimization = False

    def __init__(self, network: DrafterNetwork, recipe: DrafterRecipe, steps: int, native: bool) -> None:
        super().__init__()
        self.network, self.recipe, self.steps, self.native = network, recipe, steps, native
        self.started = perf_counter()
        self.capped = False

    def training_step(self, batch: Batch, index: int) -> None:
        loss, _ = self.judged(batch)
        matrices, vectors = self.optimizers()
        self.manual_backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.gradient_clip)
        rate = self._rate()
        for optimizer, full in ((matrices, self.recipe.matrix_lr), (vectors, self.recipe.vector_lr)):
            for group in optimizer.param_groups:
                group["lr"] = full * rate
            optimizer.step()
            optimizer.zero_grad()
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[0]))
        self.trainer.should_stop = self.trainer.should_stop or rate == 0

    def validation_step(self, batch: Batch, index: int) -> None:
        loss, agreement = self.judged(batch)
        named = {f"agreement_{depth}": share for depth, share in enumerate(agreement, start=1)}
        self.log_dict({"val_loss": loss, **named}, on_step=False, on_epoch=True, batch_size=len(batch[0]))

    def judged(self, batch: Batch) -> tuple[Tensor, list[float]]:
        """The loss, and at every depth the share of positions where both find the same token likeliest."""
        depths, network = self.recipe.depths, self.network
        states, tokens, last, read = batch
        with torch.autocast("cpu", torch.bfloat16, enabled=self.native):
            logits = network(states, tokens, depths)
        loss, agreement, length = states.new_zeros(()), [], states.shape[1]
        for depth, of_depth in enumerate(logits):
            at = read[:, 1 + depth : 1 + depth + length]
            with torch.no_grad():
                target_NU = network.target_probs(last[:, 1 + depth : 1 + depth + length][at])
            logs_NU = of_depth[:, : at.shape[1]][at].log_softmax(-1, torch.float32)
            entropy = -torch.special.entr(target_NU).sum(-1).mean()
            loss = loss + self.recipe.decay**depth * (entropy - (target_NU * logs_NU).sum(-1).mean())
            agreement.append(float((logs_NU.argmax(-1) == target_NU.argmax(-1)).float().mean()))
        return loss, agreement

    def configure_optimizers(self) -> Any:
        named = dict(self.network.named_parameters())
        matrices = [weight for name, weight in named.items() if weight.dim() == 2 and name != "lm_head.weight"]
        others = [weight for name, weight in named.items() if weight.dim() == 1 or name == "lm_head.weight"]
        dtype = torch.bfloat16 if self.native else torch.float32
        muon = Muon(matrices, self.recipe.matrix_lr, weight_decay=self.recipe.matrix_weight_decay, dtype=dtype)
        return [muon, torch.optim.AdamW(others, self.recipe.vector_lr, betas=(0.9, 0.95), weight_decay=0.01)]

    def _rate(self) -> float:
        """Share of the full rate at this step."""
        done, cap = self.global_step // 2, self.recipe.max_minutes  # both optimisers' steps are counted
        spent = 0.0 if cap is None else (perf_counter() - self.started) / (60 * cap)
        share = max(done / self.steps, spent)
        self.capped = self.capped or spent > max(0.5, done / self.steps)
        decay = 1.0 if share < 0.5 else max(0.0, 2 * (1 - share))
        return min(decay, (done + 1) / self.recipe.warm_up) if self.recipe.warm_up else decay


def padded(batch: Sequence[StatedText], depths: int, answers: bool = False) -> Batch:
    """``states`` [B, L, K C], ``tokens`` [B, L + depths] after each, the target's ``last`` states [B, L, C], and where there are
    any [B, L]; of ``answers`` alone, those that an answer's token was drawn from."""
    length = max(len(text.hidden_NKC) for text in batch)
    num_layers, hidden = batch[0].hidden_NKC.shape[1:]
    states = torch.zeros(len(batch), length, (num_layers - 1) * hidden)
    last = torch.zeros(len(batch), length, hidden)
    tokens = torch.zeros(len(batch), length + depths, dtype=torch.int64)
    read = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, text in enumerate(batch):
        count = len(text.hidden_NKC)
        states[row, :count] = text.hidden_NKC[:, :-1].flatten(1).float()
        last[row, :count] = text.hidden_NKC[:, -1].float()
        tokens[row, :count] = text.tokens[1:]
        read[row, text.start - 1 if answers else 0 : count] = True
    return states, tokens, last, read


class Bar(L.Callback):
    """One progress bar over all steps."""

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, DrafterTraining)
        self.bar = tqdm(
            total=module.steps, initial=module.global_step // 2, desc="train drafter", unit="step", mininterval=1.0
        )

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.bar.update()

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if hasattr(self, "bar"):
            told = {name: f"{float(value):.3f}" for name, value in trainer.callback_metrics.items() if "agree" in name}
            self.bar.set_postfix(told)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar.close()


def train(
    network: DrafterNetwork,
    recipe: DrafterRecipe,
    texts: Sequence[StatedText],
    held_out: Sequence[StatedText],
    folder: Path,
    seed: int,
    native: bool,
    logger: "Logger | None" = None,
) -> dict[str, float]:
    """Train ``network`` in place, and what it comes to on ``held_out``: loss and agreement by depth. A run that was interrupted
    goes on after its last epoch, which ``folder`` holds."""
    rows, judged = TextPasses(texts, recipe, seed), TextPasses(held_out, recipe, None)
    module = DrafterTraining(network, recipe, recipe.epochs * rows.steps, native)

    class Next(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            rows.epoch = trainer.current_epoch

    trainer = OneProcess(
        max_epochs=recipe.epochs,
        logger=logger or False,
        callbacks=[Bar(), Next(), ModelCheckpoint(folder, "last", save_last=False, save_on_train_epoch_end=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1_000_000_000,
    )
    last = folder / "last.ckpt"
    loaders = DataLoader(rows, batch_size=None), DataLoader(judged, batch_size=None)
    trainer.fit(module, *loaders, ckpt_path=str(last) if last.is_file() else None)
    network.eval()
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return found | {"steps": module.global_step // 2, "capped": float(module.capped)}
