"""One contract for all controllers: state of a request, exact whatever is decided, whole in a bundle, and one row decided as
many. Where they stand aside is in `test_controllers_aside`.

Cases are those of `CONTROLLERS`: one that is added there is tested here, with the bundle that `controller_bundle` writes of it.
"""

import pickle
import warnings
from itertools import islice, product

import pytest
import torch

from predictors.controllers import CONTROLLERS, NETWORKS, build_controller
from predictors.controllers.takeover import Sourcing
from predictors.controllers.unlearned import ROC
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.audit.enumeration import total_variation
from runtime.audit.tables import target_law
from tests.ancestral import LlamaLogits
from tests.bundles import ACTIONS, controller_bundle
from tests.greedy import greedy_text
from tests.runtime.test_exactness import PROMPT
from tests.selectors import balance, law_of, tiniest_pair
from tests.signals import GAMMA, HIDDEN, SETTINGS, law, root, tree_root
from tests.toys import tiny_llama

FEATURES = ("paper", "extended")
EXPORTED = [kind for kind, cls in CONTROLLERS.items() if kind in NETWORKS or issubclass(cls, Sourcing)]
SETTLED = [kind for kind in CONTROLLERS if kind not in EXPORTED or kind == "takeover"]  # by their settings
OF_KIND = {kind: [{"feature_set": features} for features in FEATURES] for kind in ("hrad", "length")}
OF_KIND["grow"] = [{}, {"lookup": 3}]
VARIANTS = [(kind, options) for kind in EXPORTED for options in OF_KIND.get(kind, [{}])]
MODELS = [(kind, options) for kind, options in VARIANTS if kind in NETWORKS]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0, hidden=HIDDEN), tiny_llama(seed=0, hidden=HIDDEN, layers=1))


# ---- state belongs to a request


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


@pytest.mark.parametrize("kind", SETTLED)
def test_state_of_settled_controllers(kind):
    controller = build_controller({"kind": kind})
    assert controller.kind == kind
    keep_the_contract(controller)
    session = controller.start(SETTINGS)
    session.plan(root())
    certain = law([1.0, 0.0])
    assert not bool(session.stop_before(certain)) and not bool(session.stop_after(DrawnToken(certain, torch.tensor(0))))
    with pytest.raises(ValueError, match=f"controller {kind}: unknown key 'epsilonn'"):
        build_controller({"kind": kind, "epsilonn": 1})


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=str)
def test_state_of_exported_controllers(pair, tmp_path, kind, options):
    wider = {"gamma": GAMMA} if "feature_set" in options else {}
    controller = load_decoder(controller_bundle(kind, tmp_path / "b", pair, **options, **wider), pair).controller
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


# ---- exact


FORK = {"drafter": {"kind": "fork", "width": 2, "depth": 2}, "verifier": "rrs_without_replacement"}
RULES = [{}, {"keeps": True}, {"product": True}, {"product": True, "keeps": True}]
HEADS = [
    ({"feature_set": features, "gamma": 2, "temperatures": (heat,)}, {}, heat)
    for features, heat in product(FEATURES, (1.0, 0.7))
]
EXACT = {  # options of the bundle, of the decoder, and a temperature
    "hrad": HEADS,
    "length": HEADS,
    "early_stop": [
        ({"inputs": inputs, **rule}, drafter, 1.0)
        for inputs, drafter, rule in product(("law", "before", "behind"), ({}, FORK), RULES)
    ],
    "survival": [({"least": least}, {}, 1.0) for least in (1, 2)],
    "grow": [({"gamma": 2, "lookup": lookup}, {"invariant": True}, 1.0) for lookup in (0, 2)],
    "delayed_tree": [
        ({"actions": ACTIONS[:3], "verifier": verifier, "states": states}, {}, 1.0)
        for verifier, states in (("specinfer", True), ("traversal", True), ("traversal", False))
    ],
}
CASES = [(kind, *case) for kind in EXPORTED for case in EXACT.get(kind, [({}, {}, 1.0)])]
THRESHOLDS = {"survival": [{"rate": rate} for rate in (1.6, 1.2, 0.6)]}
THRESHOLDS["grow"] = [{"rate": rate, "worth": worth} for rate, worth in product((0.5, 1.0, 2.0), (1.0, 0.6))]
THRESHOLDS |= {
    kind: [{"threshold": at} for at in (0.5, 0.7, 0.3, 0.9, 0.1)] for kind in ("logistic", "early_stop", "specdecpp")
}


def decides(decoder, temperature):
    """Whether some draws of chance differ in levels or tokens drafted in the two rounds after the prompt of enumerations."""
    options, seen = {"max_new_tokens": 12, "temperature": temperature, "eos_token_id": ()}, set()
    for seed in range(8):
        steps = islice(decoder.stream(PROMPT, randomness=Randomness(seed), **options), 1, 3)
        seen |= {(step.record.levels, step.record.drafted) for step in steps}
        if len(seen) > 1:
            return True
    return False


def undecided(kind, folder, pair, options, changes, temperature):
    """A decoder by the first random model that does not always draft alike."""
    for seed, rule in product(range(40), THRESHOLDS.get(kind, [{}])):
        bundle = controller_bundle(kind, folder / f"{seed}-{rule}", pair, seed=seed, **{**rule, **options})
        decoder = load_decoder(bundle, pair, changes)
        if kind == "delayed_tree":
            balance(decoder, SamplingSettings(temperature))
        # a fork's second level is always kept
        settled = changes and options.get("inputs") == "behind" and options.get("keeps")
        if settled or decides(decoder, temperature):
            return decoder
    raise AssertionError("no random model decides more than one thing, so that its law would prove little")


@pytest.mark.parametrize(("kind", "options", "changes", "temperature"), CASES, ids=str)
def test_the_output_law_is_the_targets(tmp_path, kind, options, changes, temperature):
    """Real networks on tiny Llamas, every random choice enumerated."""
    pair = tiniest_pair(4 if "feature_set" in options else 3)
    settings, length = SamplingSettings(temperature), 3 if changes or kind == "delayed_tree" else 4
    made = law_of(undecided(kind, tmp_path, pair, options, changes, temperature), length, settings)
    expected = target_law(LlamaLogits(pair.target.model), PROMPT, length, settings)
    assert total_variation(made, expected) < 1e-5


PROMPTS = ([1, 2, 3, 1, 2], [9, 8], [4, 4, 7, 30])


@pytest.fixture(scope="module")
def texts(pair):
    """What the target writes greedily after every prompt."""
    return [greedy_text(pair.target.model, prompt, 30) for prompt in PROMPTS]


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=str)
def test_greedy_output_is_the_targets(pair, texts, tmp_path, kind, options):
    settings = {"temperatures": (0.0, 1.0)} if kind == "delayed_tree" else {}
    drafted = set()
    for seed in range(3):
        folder = controller_bundle(kind, tmp_path / f"{seed}", pair, seed=seed, **options, **settings)
        decoder = load_decoder(folder, pair)
        for prompt, text in zip(PROMPTS, texts, strict=True):
            with warnings.catch_warnings(action="error"):
                out = decoder.generate(prompt, max_new_tokens=30, eos_token_id=())
            assert out.tokens == text
            drafted |= {(one.drafted, one.looked_up) for one in out.rounds[1:-4]}
    assert len(drafted) > 1, "it always drafts alike"


# ---- bundles


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=str)
def test_a_bundle_holds_the_controller_whole(pair, tmp_path, kind, options):
    """As a decoder's own, as an option of another, and by value in another process."""
    folder = controller_bundle(kind, tmp_path / "b", pair, **options)
    loaded = load_decoder(folder, pair)
    drafter = "delayed_tree" if loaded.controller.actions else "chain"
    chain = (
        {"kind": "chain", "gamma": 3, "lookup": {"length": 3}}
        if kind in ("takeover", "source") or options.get("lookup")
        else {"kind": drafter}
    )
    sizes = {"gamma": 3 if "feature_set" not in options else 2} if drafter == "chain" else {}
    config = {"method": "speculative", "drafter": chain | sizes, "verifier": loaded.controller.verifier or "block"}
    runs, sent = [], load_decoder(folder, pair)
    sent.controller = pickle.loads(pickle.dumps(loaded.controller))
    named = {"kind": kind, "bundle": str(folder)}
    built = [loaded, sent] + (
        [build_decoder(pair, config | {"controller": named})] if kind in NETWORKS or kind == "source" else []
    )
    for decoder in built:
        out = decoder.generate(
            [1, 2, 1, 2], max_new_tokens=24, temperature=1.0, randomness=Randomness(0), eos_token_id=()
        )
        runs.append([(one.levels, one.drafted, one.looked_up, one.asked, one.forecasts) for one in out.rounds])
    assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize(("kind", "options"), [case for case in VARIANTS if case[0] != "takeover"], ids=str)
def test_a_bundle_of_another_kind_is_refused(pair, tmp_path, kind, options):
    folder = controller_bundle(kind, tmp_path / "b", pair, **options)
    other = next(name for name in NETWORKS if name != kind)
    with pytest.raises(ValueError, match=f"holds a '{kind}' controller, not '{other}'"):
        build_controller({"kind": other, "bundle": str(folder)})
    with pytest.raises(ValueError, match=f"controller {kind}: unknown key 'bundel'"):
        build_controller({"kind": kind, "bundel": str(folder)})
    with pytest.raises(ValueError, match="no bundle is named"):
        build_controller({"kind": kind})


# ---- one row as many


@pytest.mark.parametrize(("kind", "options"), MODELS, ids=str)
def test_one_row_is_judged_as_many_are(pair, tmp_path, kind, options):
    controller = load_decoder(controller_bundle(kind, tmp_path / "b", pair, **options), pair).controller
    torch.manual_seed(1)
    features = torch.randn(6, controller.num_features)
    with torch.inference_mode():
        outputs, distances = controller.network.judged(features)
        many = controller.outputs(features)
        for row, whole, distance, answers in zip(features, outputs.reshape(6, -1), distances, many, strict=True):
            said = controller.said(row.unsqueeze(0))
            torch.testing.assert_close(said[: len(whole)], whole, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(said[len(whole)], distance, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(controller.outputs(row.unsqueeze(0))[0], answers, atol=1e-5, rtol=1e-4)
    assert len({tuple(one) for one in islice(many.tolist(), 6)}) > 1
