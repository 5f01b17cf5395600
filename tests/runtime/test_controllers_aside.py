"""Controllers aside: where an answer cannot be trusted, where nothing was captured, where asking does not pay, and on machines
of other prices.

Cases are those of `test_controller_contract`.
"""

import json
import warnings

import pytest
import torch

from predictors.bundle import OTHERWISE, read_bundle
from predictors.controllers import CONTROLLERS, build_controller
from predictors.controllers.base import Sourced
from predictors.controllers.source import SourceController
from predictors.latency.prices import RoundPrices
from predictors.lookup import Found, Lookup
from predictors.sampling import SamplingSettings
from predictors.signals import Root
from predictors.tree_choice import NEVER
from runtime import Randomness, build_decoder, load_decoder
from tests.bundles import STOP_NETWORKS, WEIGHED, controller_bundle, sourced_bundle
from tests.predictors.affine_profile import PROFILE
from tests.runtime.test_controller_contract import MODELS, PROMPTS, VARIANTS, pair, texts
from tests.runtime.test_exactness import PROMPT
from tests.selectors import tiniest_pair
from tests.signals import SETTINGS

__all__ = ["pair", "texts"]  # fixtures


def distrusted(card):
    (card["rule"] if card["kind"] == "delayed_tree" else card)["max_distance"] = 1e-9


def narrowed(card):
    card["contract"]["serving_range"]["max_context"] = 20


def bypassing(kind, folder, pair, options, **more):
    lengths = {"static_gamma": 1} if "feature_set" in options else {}
    heat = {} if "temperatures" in more else {"temperatures": (0.0, 1.0)}
    return load_decoder(controller_bundle(kind, folder, pair, **options, **lengths, **heat, **more), pair)


REASONS = {  # options of the bundle, the temperature of a request, what is said
    "far": ({"change": distrusted}, 0.0, "squared distance"),
    "not a number": ({}, 0.0, "not finite"),
    "not captured": ({"temperatures": (1.0,)}, 0.5, "calibrated for.*Decoding goes on at the best static"),
}


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize(("kind", "options"), MODELS, ids=str)
def test_an_answer_that_cannot_be_trusted_leaves_rounds_to_the_static_setting(
    pair, texts, tmp_path, kind, options, reason
):
    made, temperature, words = REASONS[reason]
    decoder = bypassing(kind, tmp_path / "b", pair, options, **made)
    if reason == "not a number":
        with torch.no_grad():
            decoder.controller.network.head[-1].bias.fill_(float("nan"))
    request = {"max_new_tokens": 20, "temperature": temperature, "eos_token_id": ()}
    if kind == "grow":
        request["invariant"] = True  # where a coin decides it does not ask anyway
    with pytest.warns(UserWarning, match=f"{kind} is bypassed.*{words}"):
        out = decoder.generate(PROMPTS[0], **request)
    assert temperature or out.tokens == texts[0][:20]
    assert {(one.levels, one.bypassed) for one in out.rounds[1:-3] if not one.looked_up} == {(1, True)}
    assert reason != "not captured" or {one.asked for one in out.rounds[1:-3]} == {0}
    with warnings.catch_warnings(action="error"):
        decoder.generate(PROMPTS[0], **request)  # warned once, not every request


@pytest.mark.parametrize(("kind", "options"), MODELS, ids=str)
def test_contexts_outside_the_captured_range_are_left_to_the_static_setting(pair, tmp_path, kind, options):
    decoder = bypassing(kind, tmp_path / "b", pair, options, change=narrowed)
    with pytest.warns(
        UserWarning, match=f"{kind} is bypassed: a context of 2[0-9] tokens lies outside the captured 1 to 20"
    ):
        rounds = decoder.generate([1, 2], max_new_tokens=40, eos_token_id=()).rounds[1:-3]
    flags = [one.bypassed for one in rounds]
    assert flags == sorted(flags) and set(flags) == {False, True}, "rounds inside the range are the model's"
    assert {one.levels for one in rounds if one.bypassed} == {1}


UNPAID = {"survival": {"pays": False}, "grow": {"pays": False}, "delayed_tree": {"margin": NEVER}}
UNPAID |= {kind: {"threshold": 0.0} for kind in STOP_NETWORKS} | {kind: {"rule": None} for kind in ("hrad", "length")}


@pytest.mark.parametrize(("kind", "options"), MODELS, ids=str)
def test_where_it_does_not_pay_nothing_is_asked_or_tapped(pair, texts, tmp_path, kind, options):
    decoder = bypassing(kind, tmp_path / "b", pair, options, **UNPAID[kind])
    assert decoder.controller.layers == decoder.controller.draft_layers == ()
    with warnings.catch_warnings(action="error"):
        out = decoder.generate(PROMPTS[0], max_new_tokens=20, eos_token_id=())
    assert out.tokens == texts[0][:20]
    assert {(one.levels, one.asked, one.bypassed) for one in out.rounds[1:-3]} == {(1, 0, False)}


# ---- prices


DOUBTS = dict.fromkeys(("hrad", "length"), "chosen by another latency profile")
DOUBTS |= dict.fromkeys(STOP_NETWORKS, r"a drafted token costs 0.10 target passes, and here it is 0.1[0-9]")
DOUBTS |= dict.fromkeys(("survival", "grow", "takeover", "source"), "draft steps")


@pytest.mark.parametrize(("kind", "options"), [case for case in VARIANTS if case[0] in DOUBTS], ids=str)
def test_a_machine_of_other_prices_is_warned_about_and_one_of_its_own_is_not(pair, tmp_path, kind, options):
    """No choice is made anew without what the card must hold for that."""
    own = {"profile_hash": PROFILE.profile_hash, "draft_cost": RoundPrices(PROFILE, sampled=True).draft_cost(3, 40.0)}
    own |= {"cost_ratio": PROFILE.cost_ratio(40)}

    def here(card):
        card["prices"] |= {name: value for name, value in own.items() if name in card["prices"]}

    folder, file = controller_bundle(kind, tmp_path / "b", pair, **options), tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE.to_record()))
    with pytest.warns(UserWarning, match=DOUBTS[kind]):
        assert type(load_decoder(folder, pair, latency=file).controller) is CONTROLLERS[kind]
    with pytest.raises(ValueError, match="reprice is not possible|cost_ratios"):
        load_decoder(folder, pair, latency=file, reprice=True)
    same = controller_bundle(kind, tmp_path / "own", pair, change=here, **options)
    with warnings.catch_warnings(action="error"):
        load_decoder(same, pair, latency=file)


# ---- a lookup that takes over from a survival model


KINDS = ("takeover", "source")
LOOKUPS = WEIGHED | {"tokens": [0.0] * 8}


@pytest.fixture(scope="module")
def small():
    return tiniest_pair()


def root(match, settings=SETTINGS, position=10):
    return Root(position, 3, settings, None, found=Found(match, (1, 2, 3), 2, 2) if match else Found(0, (), 0, 0))


@pytest.mark.parametrize(("kind", "rule"), [("takeover", None), ("source", LOOKUPS)])
def test_it_stands_aside_where_nothing_was_captured_or_it_does_not_pay(small, tmp_path, kind, rule):
    taking = load_decoder(sourced_bundle(tmp_path / "a", small, kind, rule), small).controller
    assert isinstance(taking.start(SETTINGS).source(root(5)), Sourced)
    assert taking.start(SamplingSettings(0.6)).source(root(5)) is None
    idle = load_decoder(sourced_bundle(tmp_path / "b", small, kind, rule, pays=False, rate=0.0), small).controller
    assert idle.start(SETTINGS).source(root(5)) is None
    static = sourced_bundle(tmp_path / "c", small, kind, rule, pays=False)
    assert idle.otherwise.asks and load_decoder(static, small).controller.otherwise.asks, "survival is asked"


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_pays_nothing_is_looked_up(small, tmp_path, kind, monkeypatch):
    served = load_decoder(sourced_bundle(tmp_path / "b", small, kind, pays=False, chains_pay=False), small)
    static = build_decoder(small, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 1}})
    taking = load_decoder(sourced_bundle(tmp_path / "c", small, kind, chains_pay=False), small)
    monkeypatch.setattr(Lookup, "extend", lambda *_: pytest.fail("looked up"))
    options = {"max_new_tokens": 12, "temperature": 1.0, "eos_token_id": ()}
    made, wanted = (one.generate(PROMPT, **options, randomness=Randomness(seed=3)) for one in (served, static))
    assert made.tokens == wanted.tokens
    assert [one.drafted for one in made.rounds] == [one.drafted for one in wanted.rounds]
    with pytest.raises(pytest.fail.Exception):
        taking.generate(PROMPT, **options)


def test_source_stands_aside_at_a_root_far_from_all_others(small, tmp_path):
    far = sourced_bundle(tmp_path / "b", small, rule=LOOKUPS | {"max_distance": 1e-9})
    session = load_decoder(far, small).controller.start(SETTINGS)
    with pytest.warns(UserWarning, match="squared distance"):
        assert session.source(root(5)) is None
    assert session.plan(root(5)) is None and session.bypassed and session.asked == 1
    assert session.plan(root(0)) is None and not session.bypassed and session.asked == 0
    session = load_decoder(sourced_bundle(tmp_path / "c", small, rule=LOOKUPS), small).controller.start(SETTINGS)
    with pytest.warns(UserWarning, match="context"):
        assert session.source(root(5, position=5000)) is None


def test_another_machine_has_other_prices(small, tmp_path):
    folder, path = sourced_bundle(tmp_path / "b", small, change=elsewhere), tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE.to_record()))
    kept = load_decoder(folder, small).controller.settings[1].rule
    with warnings.catch_warnings(action="error"):
        made = load_decoder(folder, small, latency=path, reprice=True).controller
    assert kept.costs == tuple(map(tuple, WEIGHED["costs"])) and made.settings[1].rule.costs != kept.costs
    assert made.otherwise.settings[1].rule.rate == 5.0 and made.settings[1].rule.share == kept.share


def elsewhere(card):
    one = {"cost_ratio": 3.0, "rule": {"rate": 5.0}, "static_length": 1}
    for made in card["settings"]:
        made["elsewhere"] = [one]


def test_a_card_that_lacks_the_other_controller_is_refused(small, tmp_path):
    bundle = read_bundle(sourced_bundle(tmp_path / "b", small))
    del bundle.card[OTHERWISE]
    with pytest.raises(ValueError, match=OTHERWISE):
        SourceController.from_bundle(bundle)
    assert isinstance(build_controller({"kind": "source", "bundle": str(tmp_path / "b")}), SourceController)
