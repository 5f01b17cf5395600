"""One contract suite for all controllers, and each one's rule."""

import pickle
from dataclasses import replace

import pytest
import torch

from predictors import controllers
from predictors.controllers import CONTROLLERS, build_controller
from predictors.controllers.early_stop import EarlyStop
from predictors.controllers.head import HeadController
from predictors.controllers.unlearned import ROC
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import BothModels, DrawnToken, NextLaw, Root, TreeRoot
from runtime import ModelPair
from tests.bundles import LAYERS, random_bundle, selector_bundle, sourced_bundle, stop_bundle, survival_bundle
from tests.toys import tiny_llama

SETTINGS = SamplingSettings(1.0)
GAMMA, HIDDEN = 4, 32
UNLEARNED = [cls.kind for cls in controllers.UNLEARNED]
HEADS = [
    (kind, features)
    for kind, cls in CONTROLLERS.items()
    if issubclass(cls, HeadController)
    for features in ("paper", "extended")
]
STOPPERS = [(kind, "stops") for kind, cls in CONTROLLERS.items() if issubclass(cls, EarlyStop)]
LEARNED = [*HEADS, *STOPPERS, ("survival", "numbers"), ("source", "roots"), ("delayed_tree", "roots")]


def root(settings=SETTINGS, cap=GAMMA, seed=None):
    """A root; with a ``seed`` also with states."""
    states = {}
    if seed is not None:
        random = torch.Generator().manual_seed(seed)
        states = {"hidden_KD": torch.randn(len(LAYERS), HIDDEN, generator=random)}
        states["embedding_E"] = torch.randn(HIDDEN, generator=random)
    return Root(position=10, cap=cap, settings=settings, previous=None, **states)


def law(probs, drafted=1, settings=SETTINGS, place=None, hidden_KD=None):
    probs_V = torch.tensor(probs, dtype=torch.float64)
    return NextLaw(place or root(settings), settings, drafted, probs_V.log(), probs_V, hidden_KD)


def tree_root(place, seed):
    """A root as a controller that taps the draft sees it."""
    random = torch.Generator().manual_seed(seed)
    laws = torch.rand(3, 5, generator=random).softmax(1)
    place = replace(place, hidden_KD=place.hidden_KD[:1])
    here = NextLaw(place, place.settings, 0, laws[0].log(), laws[0])
    models = BothModels(laws[1], laws[2], torch.randn(2, 1, HIDDEN, generator=random))
    return TreeRoot(here, lambda: models)


@pytest.fixture(scope="module")
def controller_of(tmp_path_factory):
    """Build a controller of any kind; a learned one from a random head over the given feature set."""
    pair = ModelPair(tiny_llama(seed=0, hidden=HIDDEN), tiny_llama(seed=0, hidden=HIDDEN, layers=1))

    def build(kind, features=None):
        if features is None:
            return build_controller({"kind": kind})
        folder = tmp_path_factory.mktemp(kind)
        if kind == "delayed_tree":
            selector_bundle(folder / "b", pair)
        elif (kind, features) in STOPPERS:
            stop_bundle(folder / "b", pair, kind)
        elif kind == "survival":
            survival_bundle(folder / "b", pair)
        elif kind == "source":
            sourced_bundle(folder / "b", pair)
        else:
            random_bundle(folder / "b", pair, features, gamma=GAMMA, kind=kind)
        return build_controller({"kind": kind, "bundle": str(folder / "b")})

    return build


def state_of(made):
    """What an object remembers, collections as they are now."""
    return {name: value.copy() if isinstance(value, list | dict) else value for name, value in vars(made).items()}


def keep_the_contract(controller):
    first, second = controller.start(SETTINGS), controller.start(SETTINGS)
    assert first is not second, "state belongs to a request"
    before, settings = state_of(second), state_of(controller)
    for seed in range(20):  # rounds
        start = root(seed=seed)
        plan = first.plan(start)
        assert plan is None or 0 <= plan <= GAMMA
        if controller.actions:
            assert first.tree(tree_root(start, seed)) in controller.actions
        for drafted in range(GAMMA if plan is None else plan):
            signal = law([0.6, 0.4], drafted, place=start, hidden_KD=torch.randn(1, HIDDEN))
            stops = first.stop_before(signal), first.stop_after(DrawnToken(signal, torch.tensor(0)))
            for stop in map(torch.as_tensor, stops):
                assert stop.dtype == torch.bool and stop.dim() == 0
        first.end_round(RoundRecord(drafted=4, accepted=1))
        assert state_of(second) == before, "state belongs to a request"
        known = state_of(controller)  # besides, learned ones keep their recorded programs
        assert {name: known[name] for name in settings} == settings, "state belongs to a request"
    assert not first.bypassed


@pytest.mark.parametrize(("kind", "features"), [*((kind, None) for kind in UNLEARNED), *LEARNED])
def test_contract_suite(controller_of, kind, features):
    controller = controller_of(kind, features)
    assert controller.kind == kind
    keep_the_contract(controller)


def test_a_controller_whose_sessions_share_a_list_breaks_the_contract():
    class Shared(ROC):
        """The wrong twin: its lists are the controller's."""

        def begin(self):
            if not hasattr(self, "scores"):
                super().begin()

    controller = Shared()
    controller.begin()
    with pytest.raises(AssertionError, match="state belongs to a request"):
        keep_the_contract(controller)


@pytest.mark.parametrize("kind", UNLEARNED)
def test_no_rule_stops_at_a_certain_law(controller_of, kind):
    session = controller_of(kind).start(SETTINGS)
    session.plan(root())
    assert not bool(session.stop_before(law([1.0, 0.0])))
    assert not bool(session.stop_after(DrawnToken(law([1.0, 0.0]), torch.tensor(0))))


@pytest.mark.parametrize(("kind", "features"), HEADS)
def test_a_learned_decision_stands_for_its_round(controller_of, kind, features):
    """Laws behind the first cannot move it, and every round decides anew."""
    session = controller_of(kind, features).start(SETTINGS)
    decisions = []
    for seed in range(40):
        start = root(seed=seed)
        session.plan(start)
        session.stop_before(law([0.6, 0.4], drafted=0, place=start))
        decisions.append(session.decision)
        session.stop_before(law([0.9, 0.1], drafted=1, place=start))
        assert session.decision == decisions[-1] is not None
    assert len(set(decisions)) > 1, "a random head that always decides alike tests little"


@pytest.mark.parametrize(("kind", "features"), HEADS)
def test_a_learned_controller_decides_alike_in_another_process(controller_of, kind, features):
    """It is pickled by value, where the draft has a process of its own."""
    made = controller_of(kind, features)
    sent = pickle.loads(pickle.dumps(made))
    for seed in range(5):
        start = root(seed=seed)
        first = law([0.6, 0.4], drafted=0, place=start)
        (probabilities, *place), (others, *other) = made.predict(start, first), sent.predict(start, first)
        assert torch.equal(probabilities, others) and place == other


@pytest.mark.parametrize("kind", ["hrad", "length"])
def test_a_head_reads_what_the_target_tested(controller_of, kind):
    """Of a round that drafted six levels, submitted three and was hit at the branch point too, it knows 3 of 3 tokens."""
    controller, plain = controller_of(kind, "extended"), RoundRecord(drafted=3, accepted=3)
    branched = RoundRecord(drafted=9, levels=6, submitted=3, accepted=4)
    other = RoundRecord(drafted=4, accepted=4)  # what levels and hits would make of it
    found = []
    for previous in (plain, branched, other):
        start = replace(root(seed=0), previous=previous)
        found.append(controller.predict(start, law([0.6, 0.4], drafted=0, place=start))[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize(("kind", "features"), HEADS)
def test_a_bundle_of_another_kind_is_refused(controller_of, kind, features, tmp_path):
    folder = random_bundle(tmp_path / "b", ModelPair(tiny_llama(), tiny_llama(layers=1)), features, kind=kind)
    other = next(name for name, _ in LEARNED if name != kind)
    with pytest.raises(ValueError, match=f"holds a '{kind}' controller, not '{other}'"):
        build_controller({"kind": other, "bundle": str(folder)})
    with pytest.raises(ValueError, match=f"controller {kind}: unknown key 'bundel'"):
        build_controller({"kind": kind, "bundel": str(folder)})


@pytest.mark.parametrize("kind", UNLEARNED)
def test_unknown_options_are_refused(kind):
    with pytest.raises(ValueError, match=f"controller {kind}: unknown key 'epsilonn'"):
        build_controller({"kind": kind, "epsilonn": 1})


def test_signals():
    signal = law([0.5, 0.25, 0.25, 0.0])
    assert float(signal.confidence) == 0.5
    assert float(signal.entropy) == pytest.approx(1.5 * torch.tensor(2.0).log().item())
    hot = SamplingSettings(2.0)
    logits = torch.tensor([2.0, 0.0], dtype=torch.float64)
    signal = NextLaw(root(hot), hot, 0, logits, (logits / 2).softmax(0))
    assert float(signal.confidence) == pytest.approx(float(logits.softmax(0).max()))
    assert float(signal.law_confidence) == pytest.approx(float((logits / 2).softmax(0).max()))
    assert float(DrawnToken(signal, torch.tensor(1)).probability) == pytest.approx(float((logits / 2).softmax(0)[1]))


def test_signals_follow_the_drafts_settings():
    """With a draft temperature of its own the temperature-1 scalars are still those of temperature 1."""
    logits = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
    cold = NextLaw(root(SETTINGS), SamplingSettings(0.0), 0, logits, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    assert float(cold.confidence) == pytest.approx(float(logits.softmax(0).max()))
    assert float(cold.law_confidence) == 1


def test_what_is_decided_before_a_draw_cannot_see_it():
    """The type of ``stop_before`` holds no token: the biased rule cannot be written by accident."""
    signal = law([0.5, 0.5])
    assert not hasattr(signal, "token") and not hasattr(signal, "probability")


def test_fixed():
    assert build_controller({"kind": "fixed", "gamma": 3}).start(SETTINGS).plan(root()) == 3
    assert build_controller({"kind": "fixed"}).start(SETTINGS).plan(root()) is None


def test_confidence():
    session = build_controller({"kind": "confidence", "epsilon": 0.6, "min_tokens": 2}).start(SETTINGS)
    assert not session.stop_before(law([0.5, 0.5], drafted=1))
    assert session.stop_before(law([0.5, 0.5], drafted=2))
    assert not session.stop_before(law([0.7, 0.3], drafted=2))


def test_entropy_rule():
    """1 - sqrt(.2 H) < .7 iff H > .45 nats."""
    session = build_controller({"kind": "entropy"}).start(SETTINGS)
    session.plan(root())
    assert not session.stop_before(law([0.5, 0.5], drafted=0)), "at least one token is drafted"
    assert session.stop_before(law([0.5, 0.5], drafted=1))  # H = .693
    assert not session.stop_before(law([0.9, 0.1], drafted=1))  # H = .325


def test_entropy_update_by_hand():
    session = build_controller({"kind": "entropy"}).start(SETTINGS)
    session.plan(root(cap=4))
    session.end_round(RoundRecord(drafted=4, accepted=2))  # AR .7 < .9: λ' = .71
    assert session.acceptance_rate == pytest.approx(0.7) and session.threshold == pytest.approx(0.9 * 0.7 + 0.1 * 0.71)
    session.acceptance_rate, session.threshold = 0.95, 0.7
    session.end_round(RoundRecord(drafted=3, accepted=3))  # AR .975, not the cap: λ' = .69
    assert session.threshold == pytest.approx(0.9 * 0.7 + 0.1 * 0.69)
    session.threshold = 0.7
    session.end_round(RoundRecord(drafted=4, accepted=4))  # the cap: unchanged
    assert session.threshold == pytest.approx(0.7)
    session.end_round(RoundRecord(drafted=0, accepted=0))  # nothing drafted: nothing learned
    assert session.threshold == pytest.approx(0.7)


def test_entropy_reads_the_temperature_1_law_when_greedy():
    greedy = SamplingSettings(0.0)
    flat = torch.tensor([0.1, 0.0], dtype=torch.float64)
    one_hot = torch.tensor([1.0, 0.0], dtype=torch.float64)
    session = build_controller({"kind": "entropy"}).start(greedy)
    assert session.stop_before(NextLaw(root(greedy), greedy, 1, flat, one_hot))


def test_another_soft_threshold_makes_another_hrad(controller_of):
    """A head that says "some" stops at the ε it is given; the controller it came from keeps its own."""
    made = controller_of("hrad", "paper")
    changed = made.with_epsilon(0.9)
    stops = []
    for controller in (made, changed):
        controller.predict = lambda start, law: (torch.tensor([0.0, 1.0, 0.0]), 0.0, ())
        session, start = controller.start(SETTINGS), root(seed=0)
        session.plan(start)
        stops.append(bool(session.stop_before(law([0.6, 0.4], drafted=1, place=start))))
    assert stops == [False, True] and made.settings[0].rule.epsilon == 0.5
    with pytest.raises(ValueError, match="'length' controller has no soft threshold"):
        controller_of("length", "paper").with_epsilon(0.9)
