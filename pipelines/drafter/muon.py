r"""Muon: momentum whose update is orthogonalised, for the matrices of a network (Jordan et al. 2024).

    B <- mu B + (1 - mu) G;    U = (1 - mu) G + mu B  (Nesterov);    W <- (1 - lr wd) W - lr sqrt(max(1, rows / columns)) NS(U)

NS is five quintic Newton-Schulz steps, X <- a X + (b A + c A A) X with A = X X^T, which push every singular value towards 1.
`torch.optim.Muon` computes the same, matrix by matrix and always in bfloat16, which takes seconds per step on a CPU that has no
bfloat16 units. Here matrices of one shape (or its transpose) are orthogonalised as one batch, in a dtype the caller chooses.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

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
