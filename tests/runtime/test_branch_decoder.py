"""Branch-parallel decoding at temperature 0 writes the target's own text, at every budget and end of sequence, and drafts
what its controller plans."""

import pytest

from predictors.bundle import ContractError
from predictors.controllers import Controller, Session
from predictors.rounds import CHOICES
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.branching.draft import BranchConfig
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.presets import PRESETS
from runtime.verification import VERIFIERS
from tests.branches import Scripted, branch_decoder, shaken_llama, watched
from tests.bundles import random_bundle
from tests.greedy import greedy_text
from tests.toys import tiny_llama

LEARNED = ("specbranch", "specbranch-no-branch")
PROMPT = [3, 1, 4]
HALVES = {"kind": "confidence", "epsilon": 0.5, "min_tokens": 0}


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=2), shaken_llama(seed=2))


@pytest.fixture(scope="module")
def text(pair):
    return greedy_text(pair.target.model, PROMPT, 40)


@pytest.fixture(scope="module")
def bundles(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles")
    return {name: random_bundle(folder / name, pair, name, gamma=2) for name in ("paper", "extended")}


# ---- greedy text


@pytest.mark.parametrize("k_rule", CHOICES["k_rule"])
@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
@pytest.mark.parametrize("retention", CHOICES["retention"])
def test_greedy_text_in_every_mode_and_width(pair, text, retention, stage, k_rule):
    kinds = set()
    for k_max in range(1, 5):
        for gamma in (k_max, k_max + 4):
            modes = {"retention": retention, "draft_stage": stage, "k_rule": k_rule}
            controller = HALVES if gamma % 2 else {"kind": "fixed"}
            decoder = branch_decoder(pair, gamma=gamma, k_max=k_max, controller=controller, **modes)
            rounds = list(watched(decoder, PROMPT, max_new_tokens=24))
            assert [*rounds[-1].text, *rounds[-1].step.tokens] == [*PROMPT, *text[:24]]
            kinds |= {item.kind for item in rounds}
    assert kinds >= {"hit", "miss", "rejection"}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_at_every_budget(pair, text, bundles, preset):
    """Pending tokens are never output: whatever the budget, the text is the target's."""
    for gamma in (2, 3, 5):
        config = {"preset": preset, "gamma": gamma}
        if preset in LEARNED and gamma % 3:  # else without a bundle
            config["controller"] = {"kind": "hrad", "bundle": str(bundles["extended" if gamma % 2 else "paper"])}
        if PRESETS[preset]["method"] == "branch_parallel":
            config["overlap"] = "none"
        decoder = build_decoder(pair, config)
        for budget in (*range(1, 10), 40):
            out = decoder.generate(PROMPT, max_new_tokens=budget)
            assert out.tokens == text[:budget]
            assert sum(record.emitted for record in out.rounds) == budget


@pytest.mark.parametrize("preset", PRESETS)
def test_a_bundle_that_names_a_preset(pair, text, tmp_path, preset):
    """Of learned presets the bundle's head decides; static ones are made for a pair, which is checked."""
    config, learned = PRESETS[preset], preset in LEARNED
    branching = {"overlap": "none"} if config["method"] == "branch_parallel" else {}

    def change(card):
        card["decoder"] = {"preset": preset, "gamma": 3, **branching}
        if not learned:
            for name in ("feature_spec", "settings", "max_distance"):
                del card[name]
            card["kind"], card["contract"]["identity"]["layer_ids"] = "fixed", []

    decoder = load_decoder(random_bundle(tmp_path / "b", pair, gamma=3, change=change), pair)
    assert isinstance(decoder, BranchParallelDecoder if branching else SequentialDecoder)
    assert decoder.controller.kind == ("hrad" if learned else config["controller"]["kind"])
    assert decoder.generate(PROMPT, max_new_tokens=40).tokens == text
    with pytest.raises(ContractError):
        load_decoder(tmp_path / "b", ModelPair(tiny_llama(seed=7), pair.draft))


def test_draft_stages_may_be_shorter_than_branches():
    """A draft that is always right: two tokens drafted in front of an idle target, then branches of four."""
    script = [token % 13 for token in range(40)]
    decoder = branch_decoder(
        ModelPair(Scripted(script, 1), Scripted(script, 1)), gamma=4, draft_stage_gamma=2, controller={"kind": "fixed"}
    )
    rounds = decoder.generate([5], max_new_tokens=30, eos_token_id=[]).rounds[1:]
    assert (rounds[0].idle_levels, rounds[0].submitted, rounds[0].levels) == (2, 2, 2 + 1 + 4)
    assert [(r.idle_levels, r.submitted) for r in rounds[1:4]] == [(0, 4)] * 3


def test_a_request_may_fill_the_context(pair):
    decoder = branch_decoder(pair, gamma=8, k_rule="const", k_max=12, controller={"kind": "fixed"})
    prompt = [token % 32 for token in range(200)]
    assert decoder.generate(prompt, max_new_tokens=56).tokens == greedy_text(pair.target.model, prompt, 56)


@pytest.mark.parametrize("size", [30, 36])
def test_a_draft_with_another_padding(text, size):
    pair = ModelPair(tiny_llama(seed=2), shaken_llama(seed=2))
    pair.draft = ModelPair(tiny_llama(size, seed=2)).target
    decoder = branch_decoder(pair, gamma=2, k_rule="const", k_max=31)
    assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]


@pytest.mark.parametrize("kind", CHOICES["branch_verifier"])
def test_drafts_of_another_temperature(pair, text, kind):
    decoder = branch_decoder(pair, gamma=3, draft_temperature=1.0, branch_verifier=kind, controller={"kind": "fixed"})
    for seed in range(3):
        assert decoder.generate(PROMPT, max_new_tokens=20, randomness=Randomness(seed)).tokens == text[:20]


def test_returning_pending_tokens_would_be_noticed(pair, text):
    """Power of the budgets' test: with what is pending when the budget ends, the text is another."""
    rounds = watched(branch_decoder(pair, gamma=4, controller={"kind": "fixed"}), PROMPT, max_new_tokens=40)
    unverified = [[*item.text, *item.pending][len(PROMPT) :] for item in rounds]
    assert any(tokens != text[: len(tokens)] for tokens in unverified)


# ---- end of sequence


def ends(decoder, prompt, text):
    """Decode with every token of ``text`` as the end of sequence; in which place of a round the ends fell."""
    places = set()
    for eos in dict.fromkeys(text):
        expected = [*prompt, *text[: text.index(eos) + 1]]
        last = None
        for last in watched(decoder, prompt, max_new_tokens=len(text), eos_token_id=eos):
            assert eos not in last.pending[:-1]
            assert all(eos not in branch[:-1] for branch in last.branches)
            assert not (last.branches and eos in last.pending), "nothing comes behind an end of sequence"
        if last is None:
            places.add("prefill")
            assert decoder.generate(prompt, max_new_tokens=len(text), eos_token_id=eos).tokens == [eos] == text[:1]
            continue
        assert [*last.text, *last.step.tokens] == expected
        in_pending = len(last.step.tokens) <= last.record.accepted_in_sequence
        places.add("pending" if in_pending else last.kind)
    return places


@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
@pytest.mark.parametrize("retention", CHOICES["retention"])
def test_end_of_sequence_at_every_offset(retention, stage):
    text, places = list(range(3, 15)), set()
    for lies, hopeless in (((), False), ((4, 9), True), ((1, 3, 5, 7), False), (range(12), False), (range(12), True)):
        pair = ModelPair(Scripted(text, 2), Scripted(text, 2, lies, hopeless))
        for gamma, epsilon in (
            (1, 0.0),
            (2, 0.75),
            (2, 0.0),
            (4, 0.75),
        ):  # the lies are the draft's least confident places
            controller = {"kind": "confidence", "epsilon": epsilon, "min_tokens": 0}
            modes = {"retention": retention, "draft_stage": stage, "k_rule": "const", "k_max": 2}
            places |= ends(branch_decoder(pair, gamma=gamma, controller=controller, **modes), [0, 1], text)
    assert places == {"prefill", "pending", "rejection", "hit", "miss", "no branches"}


def test_end_of_sequence_of_llamas(pair, text):
    decoder = branch_decoder(pair, gamma=3, controller={"kind": "fixed"})
    assert ends(decoder, PROMPT, text) >= {"prefill", "pending"}


# ---- what controllers change in a round


class Scheduled(Controller):
    """Plans ``lengths`` by the root's position and tries ``branches`` tokens at every branch point."""

    kind = "scheduled"

    def __init__(self, lengths=(None,), branches=None):
        self.lengths, self.branches = lengths, branches

    def start(self, settings):
        return ScheduledSession(self)


class ScheduledSession(Session):
    def __init__(self, controller):
        self.controller = controller

    def plan(self, root):
        return self.controller.lengths[root.position % len(self.controller.lengths)]

    def branch_count(self, law):
        return self.controller.branches


def scheduled(pair, lengths=(None,), branches=None, **options):
    config = BranchConfig(**{"gamma": 4, "overlap": "none", **options})
    return BranchParallelDecoder(pair, config, VERIFIERS["block"], Scheduled(lengths, branches))


@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
@pytest.mark.parametrize("retention", CHOICES["retention"])
def test_a_plan_is_what_is_drafted_and_retained(retention, stage):
    text, lengths, retained = [2 + place % 9 for place in range(60)], (2, 0, 9, 1, 3, 0, 2), set()
    pair = ModelPair(Scripted(text, 2), Scripted(text, 2))
    before = None
    for item in watched(scheduled(pair, lengths, retention=retention, draft_stage=stage), [0, 1], max_new_tokens=60):
        planned = min(4, lengths[len(item.text) % len(lengths)])
        room = 60 - (len(item.text) - 2)
        behind = max(map(len, item.branches), default=1) - 1
        if before is not None and before.kind == "hit":
            available = len(before.branches[0]) - 1
            wanted = available if retention == "prior" else min(planned, available)
            retained.add(len(item.pending))
        else:
            wanted = planned if stage == "idle" else 0
        assert len(item.pending) == min(wanted, room - 1)
        if item.branches:
            assert behind == min(4, room - len(item.pending) - 2, planned if retention == "prior" else 4)
        before = item
    assert len(retained) > 2


def test_a_session_decides_how_many_branches_grow(pair):
    text = greedy_text(pair.target.model, PROMPT, 20)
    for branches in (1, 3):
        rounds = list(watched(scheduled(pair, branches=branches, k_rule="const", k_max=2), PROMPT, max_new_tokens=20))
        assert {len(item.branches) for item in rounds if item.branches} == {branches}
        assert [*rounds[-1].text, *rounds[-1].step.tokens] == [*PROMPT, *text]


def test_the_soft_threshold_changes_what_is_drafted(pair):
    lengths = []
    for epsilon in (0.0, 0.6):
        decoder = build_decoder(pair, {"method": "branch_parallel", "overlap": "none", "epsilon": epsilon})
        assert decoder.controller.kind == "confidence"
        rounds = list(watched(decoder, PROMPT, max_new_tokens=40))
        confident = [float(law.confidence) >= epsilon for item in rounds for law in item.step.evidence.draft_laws[1:]]
        assert all(confident)
        lengths.append([len(item.pending) for item in rounds])
    assert lengths[0] != lengths[1]


def test_branches_shorter_than_a_heads_decision_are_refused(pair, tmp_path):
    folder = random_bundle(tmp_path / "b", pair, gamma=3)
    with pytest.raises(ValueError, match=r"gamma=2 is shorter than the 3 tokens the hrad.*Use gamma >= 3"):
        build_decoder(pair, {"preset": "specbranch", "gamma": 2, "controller": {"kind": "hrad", "bundle": str(folder)}})
