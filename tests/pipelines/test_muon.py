import torch

from pipelines.drafter.muon import Muon, orthogonalise


def test_it_equals_torchs_own_in_bfloat16():
    generator = torch.Generator().manual_seed(0)
    shapes = [(12, 20), (20, 12), (12, 12), (12, 20)]
    ours = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    theirs = [matrix.detach().clone().requires_grad_() for matrix in ours]
    optimizers = (
        Muon(ours, lr=0.02, momentum=0.95, weight_decay=0.05, dtype=torch.bfloat16),
        torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.05),
    )
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0)


def test_updates_are_nearly_orthogonal():
    matrices = torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices, 5, torch.float32))
    assert values.min() > 0.4
    assert values.max() < 1.4
