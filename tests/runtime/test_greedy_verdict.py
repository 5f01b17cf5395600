"""At temperature 0 every lossless rule follows the target's own tokens: its law is what the shortcut says."""

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime.laws import processed_law
from runtime.tree import DraftLaw, TokenTree
from runtime.verification import VERIFIERS
from runtime.verification.outcome import greedy_verdict

GREEDY = SamplingSettings(0.0)


def trees(law, generator):
    """Random trees over four tokens whose siblings differ; sampled ones with one-hot and with soft laws."""
    for soft in (False, True):
        for _ in range(60):
            tokens, parents = [], []
            for parent in [-1, -1, 0, 0, 1, 2, 3][: int(torch.randint(1, 8, (), generator=generator))]:
                used = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
                tokens.append(next(t for t in torch.randperm(4, generator=generator).tolist() if t not in used))
                parents.append(parent)
            draft = torch.rand(len(tokens) + 1, 4, generator=generator, dtype=torch.float64) + 0.05
            draft = draft / draft.sum(1, keepdim=True)
            if not soft and law is DraftLaw.IID and len(set(parents)) == len(parents):  # a chain of a greedy draft
                draft = torch.nn.functional.one_hot(torch.tensor([*tokens, 0]), 4).double()
            probs = None if law is DraftLaw.DETERMINISTIC else draft
            yield TokenTree(tokens=torch.tensor(tokens), parents=torch.tensor(parents), draft_probs=probs, law=law)


LOSSLESS = [(name, law) for name, verifier in VERIFIERS.items() for law in sorted(verifier.lossless_for, key=str)]


@pytest.mark.parametrize("name, law", LOSSLESS, ids=str)
def test_every_lossless_rule_agrees(name, law):
    verifier, generator = VERIFIERS[name], torch.Generator().manual_seed(0)
    accepted = set()
    for tree in trees(law, generator):
        if verifier.chains_only and not tree.is_chain:
            continue
        logits = torch.randn(tree.num_nodes + 1, 4, generator=generator, dtype=torch.float64)
        follow = int(torch.randint(0, tree.num_nodes + 1, (), generator=generator))
        for node in tree.path(follow):  # a target that goes some way down the tree
            logits[tree.parent_list[node] + 1, tree.token_list[node]] += 10
        row, token = greedy_verdict(tree, logits)
        outcome = verifier(tree, processed_law(logits, GREEDY))
        emitted = {}
        for stop, mass in enumerate(outcome.stop.tolist()):
            for last, share in enumerate(outcome.residual(stop).tolist()):
                text = (*(tree.token_list[node] for node in tree.path(stop)), last)
                emitted[text] = emitted.get(text, 0.0) + mass * share
        expected = (*(tree.token_list[node] for node in tree.path(row)), token)
        assert emitted[expected] == pytest.approx(1, abs=1e-9)
        accepted.add(tree.depths[row])
    assert len(accepted) >= (2 if verifier.chains_only else 3)
