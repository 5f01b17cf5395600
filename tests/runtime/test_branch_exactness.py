"""The branch-parallel decoder's output law equals the target's, by enumeration of every random choice, round by round.

Three tokens, two candidates: with γ = 1 and five tokens every part of the machine is reached (pending block, hit, miss, retained
branch, budget); γ = 2 adds branches retained in part.
"""

import pytest

from predictors.controllers import Controller, Session, build_controller
from predictors.sampling import SamplingSettings
from runtime import ModelPair
from runtime.audit.enumeration import total_variation
from runtime.audit.rounds import decoded_law
from runtime.audit.tables import TableModel, target_law
from runtime.branching import draft as draft_module
from runtime.branching.candidates import Candidates
from runtime.branching.draft import BranchConfig, BranchDraft
from runtime.decoding import branch_parallel
from runtime.decoding import branch_parallel as jobs
from runtime.decoding.branch_parallel import BranchParallelDecoder, BranchRun
from runtime.drafting.chain import Chain, ChainDraft
from runtime.drafting.sampler import PlainSampler
from runtime.verification import VERIFIERS
from tests.ancestral import LlamaLogits, cut_law
from tests.by_rounds import Signal
from tests.toys import tiny_llama

PROMPT = [0, 1]
NONE, SOME, ALL = (Signal(lambda root, s=s: s) for s in range(3))
IN_TURN = Signal(lambda root: root.position % 3)
BY_PAST = Signal(lambda root: 1 if root.previous is None else (root.previous.accepted + root.previous.submitted) % 3)
BY_STAGE = Signal(lambda root: 2 if root.previous is not None and not root.previous.ends_segment else 1, min_tokens=0)
KINDS = ["match", "rrs", "hybrid"]


def toys(zeros=False):
    return ModelPair(TableModel(3, seed=1, zeros=zeros), TableModel(3, seed=2, zeros=zeros))


def decoder_of(controller=ALL, verifier="block", pair=None, **options):
    config = BranchConfig(**{"gamma": 1, "k_max": 2, "k_rule": "const", "overlap": "none", **options})
    return BranchParallelDecoder(pair or toys(), config, VERIFIERS[verifier], controller)


def error(decoder, settings=None, length=5):
    """Total variation between the decoder's law and the target's."""
    settings = settings or SamplingSettings(1.0)
    law = decoded_law(decoder, PROMPT, length, settings)
    assert abs(sum(law.values()) - 1) < 1e-9
    return total_variation(law, target_law(decoder.pair.target, PROMPT, length, settings))


@pytest.fixture(params=["read", "unread"])
def growth(request, monkeypatch):
    """Branches grow by levels that the host reads, or unread to the end, as on a device."""
    monkeypatch.setattr(PlainSampler, "reads", request.param == "read")
    return request.param


@pytest.mark.parametrize("stage", ["idle", "preverify"])
@pytest.mark.parametrize("retention", ["posterior", "prior"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_mode(kind, retention, stage, growth):
    options = {"branch_verifier": kind, "retention": retention, "draft_stage": stage}
    assert error(decoder_of(IN_TURN, **options)) < 1e-9
    if growth == "read":
        assert error(decoder_of(BY_PAST, **options), SamplingSettings(0.7)) < 1e-9


@pytest.mark.parametrize("signal", [NONE, SOME, ALL], ids=["none", "some", "all"])
@pytest.mark.parametrize("kind, temperature", [("rrs", 1.0), ("match", 0.7), ("hybrid", 0.7)])
def test_the_signals_three_values(kind, temperature, signal):
    assert error(decoder_of(signal, branch_verifier=kind), SamplingSettings(temperature)) < 1e-9


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_pearl(temperature):
    pearl = decoder_of(build_controller({"kind": "fixed"}), "tokenwise", k_max=1, draft_stage="preverify")
    assert error(pearl, SamplingSettings(temperature)) < 1e-9


@pytest.mark.parametrize("retention", ["posterior", "prior"])
def test_branches_kept_in_part(retention):
    """γ = 2, one token tested against ε from the first on: 0, 1 or 2 of the two are kept."""
    first_too = Signal(lambda root: 1, epsilon=0.5, min_tokens=0)
    assert error(decoder_of(first_too, gamma=2, retention=retention, k_max=1), length=6) < 1e-9


@pytest.mark.parametrize("retention", ["posterior", "prior"])
def test_a_short_draft_stage_and_other_decisions_on_what_survived(retention, growth):
    if (retention, growth) == ("prior", "unread"):
        pytest.skip("as where it is read")
    decoder = decoder_of(BY_STAGE, gamma=2, draft_stage_gamma=1, retention=retention, k_max=1)
    assert error(decoder, length=6) < 1e-9


class Followed(Controller):
    """Draws an explicit length at the root, and stops where the product of confidences since then is low: one draft's, or
    a-priori that of all branches in turn."""

    kind, follows_one_draft = "followed", True

    def start(self, settings):
        return FollowedSession()


class FollowedSession(Session):
    chance = 1.0

    def plan(self, root):
        self.chance = 1.0
        return (None, 1, 2, 0)[root.position % 4]

    def stop_before(self, law):
        self.chance *= float(law.confidence)
        return self.chance < 0.3


@pytest.mark.parametrize("k_max", [1, 2])
@pytest.mark.parametrize("retention", ["posterior", "prior"])
def test_explicit_lengths_and_rules_that_remember_a_draft(retention, k_max):
    """Exact either way: `build` refuses such a rule a-priori as its product would be of several drafts."""
    assert error(decoder_of(Followed(), gamma=3 - k_max, retention=retention, k_max=k_max)) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_tokens_filters_and_the_drafts_own_temperature(kind, growth):
    pair, settings = toys(zeros=True), SamplingSettings(1.0, top_k=2)
    if growth == "unread":  # candidates that do not exist
        assert error(decoder_of(IN_TURN, pair=pair, branch_verifier=kind, k_max=3), settings) < 1e-9
        return
    assert error(decoder_of(IN_TURN, pair=pair, branch_verifier=kind)) < 1e-9
    assert error(decoder_of(IN_TURN, pair=pair, branch_verifier=kind, draft_temperature=2.0), settings) < 1e-9


@pytest.mark.parametrize("kind", ["confidence", "entropy"])
def test_controllers_that_are_not_learned(kind):
    assert error(decoder_of(build_controller({"kind": kind}), k_rule="ceil")) < 1e-9


def test_greedy_laws_are_one_hot():
    assert error(decoder_of(IN_TURN, branch_verifier="rrs"), SamplingSettings(0.0), length=12) == 0


def test_tiny_llamas():
    """Caches, positions and masks of the real forward; their norms compute in float32."""
    pair = ModelPair(tiny_llama(3, seed=0), tiny_llama(3, seed=1))
    settings = SamplingSettings(1.0)
    law = decoded_law(decoder_of(IN_TURN, pair=pair), PROMPT, 5, settings)
    assert total_variation(law, target_law(LlamaLogits(pair.target.model), PROMPT, 5, settings)) < 1e-5


# ---- deliberately wrong twins: each must miss the target's law, or the tests above have no power


def test_dropping_a_drawn_token_is_noticed(monkeypatch):
    """A sampled token thrown away because its own probability is low."""
    honest = ChainDraft.draw

    def dropping(self, root, cap, session, clock):
        chain = honest(self, root, cap, session, clock)
        kept = 0
        while kept < len(chain.tokens) and chain.laws[kept].probs_V[chain.tokens[kept]] >= 0.35:
            kept += 1
        self._scratch = {node: place for node, place in self._scratch.items() if node < kept}
        next_law = chain.laws[kept] if kept < len(chain.laws) else chain.next_law
        return Chain(chain.tokens[:kept], chain.laws[:kept], next_law)

    monkeypatch.setattr(BranchDraft, "draw", dropping)
    assert error(decoder_of()) > 1e-3


def test_retention_by_later_tokens_is_noticed(monkeypatch):
    """A branch cut before its least likely token: the decision on one token reads it and those behind it."""
    honest = BranchDraft._retain

    def cut_before_the_weakest(self, place):
        branch = self._branches[place]
        drawn = [float(law[token]) for law, token in zip(branch.probs, branch.tokens[1:], strict=False)]
        weakest = drawn.index(min(drawn)) if drawn and min(drawn) < 0.5 else len(drawn)
        remaining, self._remaining = self._remaining, min(self._remaining, 1 + weakest)
        trimmed = honest(self, place)
        self._remaining = remaining
        return trimmed

    monkeypatch.setattr(BranchDraft, "_retain", cut_before_the_weakest)
    assert error(decoder_of()) > 1e-3


def test_most_likely_candidates_verified_as_if_sampled_are_noticed(monkeypatch):
    honest = draft_module.draw_candidates

    def mislabelled(kind, law, count, sampler):
        return Candidates(honest("match", law, count, sampler).tokens, law.probs_V, "rrs")

    monkeypatch.setattr(draft_module, "draw_candidates", mislabelled)
    assert error(decoder_of(branch_verifier="rrs")) > 1e-3


def test_sorted_candidates_are_noticed(monkeypatch):
    honest = draft_module.draw_candidates

    def by_probability(kind, law, count, sampler):
        drawn = honest(kind, law, count, sampler)
        order = drawn.draft_V[drawn.tokens].argsort(descending=True)
        return Candidates(drawn.tokens[order], drawn.draft_V, kind)

    monkeypatch.setattr(draft_module, "draw_candidates", by_probability)
    assert error(decoder_of(branch_verifier="rrs")) > 1e-3


def test_pruned_candidates_are_noticed(monkeypatch):
    honest = draft_module.draw_candidates

    def likely_ones_only(kind, law, count, sampler):
        drawn = honest(kind, law, count, sampler)
        likely = drawn.tokens[drawn.draft_V[drawn.tokens] >= 0.3]
        return Candidates(likely if len(likely) else drawn.tokens[:1], drawn.draft_V, kind)

    monkeypatch.setattr(draft_module, "draw_candidates", likely_ones_only)
    assert error(decoder_of(branch_verifier="rrs")) > 1e-3


def test_a_bonus_token_drawn_before_the_branch_verdict_is_noticed(monkeypatch):
    """Two draws at the branch point: the bonus token if it is a candidate, else the branch verifier's."""
    honest = branch_parallel.draw_at_branch_point

    def twice(candidates, law_V, chance):
        bonus = int(chance.categorical(law_V))
        tokens = candidates.tokens.tolist()
        return (bonus, tokens.index(bonus)) if bonus in tokens else honest(candidates, law_V, chance)

    monkeypatch.setattr(branch_parallel, "draw_at_branch_point", twice)
    assert error(decoder_of(branch_verifier="rrs")) > 1e-3


def verified_as(kind, monkeypatch):
    honest = Candidates.verdict_law
    monkeypatch.setattr(
        Candidates, "verdict_law", lambda self, law_V: honest(Candidates(self.tokens, self.draft_V, kind), law_V)
    )


def test_hybrid_candidates_verified_as_if_all_were_sampled_are_noticed(monkeypatch):
    verified_as("rrs", monkeypatch)
    assert error(decoder_of(branch_verifier="hybrid")) > 1e-3


def test_any_candidates_verified_by_equality_are_exact(monkeypatch):
    """Match verification is exempt: the target's token is drawn first, whatever the candidates are."""
    verified_as("match", monkeypatch)
    assert error(decoder_of(branch_verifier="rrs")) < 1e-9


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_returning_pending_tokens_is_noticed(monkeypatch, temperature):
    """The loops of the public code stop at the length limit and return what was never verified: wrong at temperature 0 too."""
    honest = BranchRun.step

    def with_pending(self):
        step = honest(self)
        left = self.remaining
        if 0 < left <= 2 and self.verdict.branch is not None:
            draft = self.jobs._draft
            unverified = draft._branches[self.verdict.branch].tokens[1 : 1 + left]
            self.text += unverified
            self.done = len(unverified) == left
        return step

    monkeypatch.setattr(BranchRun, "step", with_pending)
    assert error(decoder_of(), SamplingSettings(temperature)) > 1e-3


# ---- what a round's record may tell a controller before it decides on the surviving branch


def peeking_error():
    """A controller that keeps a branch only if it was drafted to its full length, with token 2 ending texts."""

    def rule(root):
        return 2 if root.previous is None or root.previous.levels >= 3 else 0

    decoder = decoder_of(Signal(rule), gamma=2, k_max=1, draft_stage="preverify")
    settings = SamplingSettings(1.0)
    law = decoded_law(decoder, PROMPT, 6, settings, eos_tokens={2})
    return total_variation(law, cut_law(target_law(decoder.pair.target, PROMPT, 6, settings), 2))


def test_how_far_branches_were_drafted_is_not_told(monkeypatch):
    assert peeking_error() < 1e-9
    monkeypatch.setattr(jobs, "_known", lambda root: root)
    assert peeking_error() > 1e-3
