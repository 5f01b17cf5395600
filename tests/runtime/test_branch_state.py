"""Branch-parallel decoding keeps its caches and features true: every law and state is recomputed without a cache."""

import pytest
import torch

from predictors.rounds import CHOICES
from runtime import ModelPair, Randomness
from runtime.branching.draft import BranchDraft
from runtime.compact.state import CompactState
from runtime.drafting.draft import ModelDraft
from tests.branches import branch_decoder, shaken_llama, sharp_llama, watched

PROMPT = [3, 1, 4]
LAYERS = (0, 1, 2)
HALVES = {"kind": "confidence", "epsilon": 0.5, "min_tokens": 0}


def a_pair(forward="compact"):
    return ModelPair(sharp_llama(2, sharpness=6), shaken_llama(2, sharpness=6), forward=forward)


@torch.no_grad()
def cache_free(model, tokens):
    """Logits [N, V] and hidden states, by layer, of a forward without a cache."""
    out = model(torch.tensor([tokens]), output_hidden_states=True)
    return out.logits[0], [layer[0] for layer in out.hidden_states]


def require_true_laws(pair, item):
    """The laws that a round verified with are those of its own text."""
    rows = len(item.pending) + 1
    target, _ = cache_free(pair.target.model, [*item.text, *item.pending])
    torch.testing.assert_close(item.step.evidence.target_probs, target[-rows:].softmax(-1), atol=1e-5, rtol=1e-3)
    draft, _ = cache_free(pair.draft.model, [*item.text, *item.pending])
    for law, logits_V in zip(item.step.evidence.draft_laws, draft[-rows:-1], strict=True):
        torch.testing.assert_close(law.logits_V, logits_V, atol=1e-4, rtol=1e-3)


def decoded(pair, seeds=range(3), length=30, **options):
    """Sampled rounds of some requests on one decoder, each after the one before it."""
    decoder = branch_decoder(pair, **{"gamma": 3, "k_max": 2, "controller": HALVES, **options})
    for seed in seeds:
        before = None
        request = {"max_new_tokens": length, "temperature": 1.0, "randomness": Randomness(seed), "layers": LAYERS}
        for item in watched(decoder, PROMPT, **request):
            yield before, item
            before = item


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
@pytest.mark.parametrize("retention", CHOICES["retention"])
def test_laws_are_those_of_the_committed_text(retention, stage, forward):
    pair, retained = a_pair(forward), set()
    for controller in (HALVES, {"kind": "fixed"}):
        for before, item in decoded(pair, retention=retention, draft_stage=stage, controller=controller):
            require_true_laws(pair, item)
            if before is not None and before.kind == "hit":
                retained.add(len(item.pending))
    assert retained >= {0, 1, 3}, "blocks whose laws were computed in the branches of the round before"


# ---- deliberately wrong twins: each must be noticed, or the tests above have no power


def wrong_branch(monkeypatch):
    """The cache keeps the rows of another branch than the one that was hit."""
    honest = BranchDraft._commit_branch

    def another(self, branch, kept):
        others = [other for other in self._branches if other is not branch and len(other.nodes) > kept]
        honest(self, others[0] if others else branch, kept)

    monkeypatch.setattr(BranchDraft, "_commit_branch", another)


def pending_committed(monkeypatch):
    """What is retained of a branch goes into the cache as if it were verified."""
    honest = CompactState.keep
    monkeypatch.setattr(CompactState, "keep", lambda self, path, pending=0: honest(self, path))


def rejected_kept(monkeypatch):
    """The draft's cache is not cropped after a rejection."""
    honest = ModelDraft.commit

    def one_more(self, path, accepted, newest, hidden_NKD):
        longer = range(len(path) + 1) if len(path) in self._scratch else path
        honest(self, longer, accepted, newest, hidden_NKD)

    monkeypatch.setattr(BranchDraft, "commit", one_more)


def newest_twice(monkeypatch):
    """The token of the branch point is fed again, although its row is kept."""
    honest = BranchDraft._commit_branch

    def fed_again(self, branch, kept):
        honest(self, branch, kept)
        self._uncached = [branch.tokens[0]] if not kept else self._uncached

    monkeypatch.setattr(BranchDraft, "_commit_branch", fed_again)


def target_not_cropped(monkeypatch):
    """The target's cache is not cropped after a rejection."""
    honest = CompactState.keep

    def one_more(self, path, pending=0):
        rows = self.scratch.total - self.scratch.committed
        honest(self, range(len(path) + 1) if self._layers and len(path) < rows else path, pending)

    monkeypatch.setattr(CompactState, "keep", one_more)


@pytest.mark.parametrize("twin", [wrong_branch, pending_committed, rejected_kept, newest_twice, target_not_cropped])
def test_a_wrong_cache_is_noticed(monkeypatch, twin):
    twin(monkeypatch)
    pair = a_pair()
    with pytest.raises(AssertionError):
        for _, item in decoded(pair):
            require_true_laws(pair, item)


# ---- features


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
def test_features_are_of_the_row_that_wrote_the_newest_token(stage, forward):
    pair, roots, last_rows = a_pair(forward), set(), []
    weights = pair.target.model.get_input_embeddings().weight
    for before, item in decoded(pair, seeds=range(8), draft_stage=stage):
        _, hidden = cache_free(pair.target.model, item.text)
        expected_KD = torch.stack([hidden[layer][-2] for layer in LAYERS])
        root = item.step.evidence.root
        torch.testing.assert_close(root.hidden_KD, expected_KD, atol=1e-4, rtol=1e-3)
        assert torch.equal(root.embedding_E, weights[item.text[-1]])
        assert root.position == len(item.text)
        if before is None:
            roots.add("prefill")
            continue
        roots.add((before.kind, bool(before.pending)))
        last_rows.append(torch.allclose(before.step.evidence.hidden_NKD[-1], expected_KD, atol=1e-2))
    assert roots >= {"prefill", ("rejection", True), ("hit", True), ("hit", False), ("miss", True), ("miss", False)}
    assert not all(last_rows), "or the rule 'last row of the pass' would do"
