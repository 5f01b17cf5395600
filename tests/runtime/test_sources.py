"""Bundles in which a lookup takes over from a survival model: exact in the decoder, aside where they do not know, repriced."""

import json
import warnings

import pytest

from predictors.bundle import OTHERWISE, read_bundle
from predictors.controllers import build_controller, is_learned, learned_controller
from predictors.controllers.base import Sourced
from predictors.controllers.source import Source
from predictors.controllers.survival import Survival
from predictors.lookup import Found, Lookup
from predictors.sampling import SamplingSettings
from predictors.signals import Root
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from tests.bundles import WEIGHED, sourced_bundle
from tests.predictors.affine_profile import PROFILE
from tests.runtime.test_exactness import PROMPT
from tests.selectors import tiniest_pair
from tests.toys import tiny_llama

SETTINGS = SamplingSettings(1.0)
KINDS = ("takeover", "source")
CHAINS = WEIGHED | {"tokens": [99.0, *[0.0] * 7]}  # promise more than any lookup
LOOKUPS = WEIGHED | {"tokens": [0.0] * 8}


@pytest.fixture(scope="module")
def pair():
    return tiniest_pair()


def root(match, settings=SETTINGS, position=10):
    return Root(position, 3, settings, None, found=Found(match, (1, 2, 3), 2, 2) if match else Found(0, (), 0, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_output_is_the_targets_and_every_source_drafts(tmp_path, kind):
    pair = ModelPair(
        tiny_llama(seed=0, vocabulary_size=12), tiny_llama(seed=1, layers=1, hidden=16, vocabulary_size=12)
    )
    plain = build_decoder(pair, {"method": "autoregressive"})
    decoder = load_decoder(sourced_bundle(tmp_path / "b", pair, kind), pair)
    sources = set()
    for prompt in ([1, 2, 3, 1, 2], [9, 8], [4, 4, 5, 4]):
        options = {"max_new_tokens": 40, "eos_token_id": ()}
        out = decoder.generate(prompt, **options)
        assert out.tokens == plain.generate(prompt, **options).tokens
        sources |= {(one.looked_up > 0, one.passes > 0, one.asked > 0) for one in out.rounds[1:-3]}
    assert {(True, kind == "takeover"), (False, True)} <= {found[:2] for found in sources}
    asked_of_lookups = {asked for looked_up, _, asked in sources if looked_up}
    assert asked_of_lookups == {kind == "source"}, "a match answers without a model"


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_holds_the_other_controller(pair, tmp_path, kind):
    bundle = read_bundle(sourced_bundle(tmp_path / "b", pair, kind))
    controller = load_decoder(tmp_path / "b", pair).controller
    assert type(controller.otherwise) is Survival and controller.otherwise.asks
    assert controller.contract == bundle.contract and bundle.otherwise.card["kind"] == "survival"
    assert is_learned(bundle) and type(learned_controller(bundle)) is Survival


@pytest.mark.parametrize(("kind", "rule"), [("takeover", None), ("source", LOOKUPS)])
def test_it_stands_aside_where_nothing_was_captured_or_it_does_not_pay(pair, tmp_path, kind, rule):
    taking = load_decoder(sourced_bundle(tmp_path / "a", pair, kind, rule), pair).controller
    assert isinstance(taking.start(SETTINGS).source(root(5)), Sourced)
    assert taking.start(SamplingSettings(0.6)).source(root(5)) is None
    idle = load_decoder(sourced_bundle(tmp_path / "b", pair, kind, rule, pays=False, rate=0.0), pair).controller
    assert idle.start(SETTINGS).source(root(5)) is None
    static = sourced_bundle(tmp_path / "c", pair, kind, rule, pays=False)
    assert idle.otherwise.asks and load_decoder(static, pair).controller.otherwise.asks, "survival is asked"


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_pays_nothing_is_looked_up(pair, tmp_path, kind, monkeypatch):
    served = load_decoder(sourced_bundle(tmp_path / "b", pair, kind, pays=False, chains_pay=False), pair)
    static = build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 1}})
    taking = load_decoder(sourced_bundle(tmp_path / "c", pair, kind, chains_pay=False), pair)
    monkeypatch.setattr(Lookup, "extend", lambda *_: pytest.fail("looked up"))
    options = {"max_new_tokens": 12, "temperature": 1.0, "eos_token_id": ()}
    made, wanted = (one.generate(PROMPT, **options, randomness=Randomness(seed=3)) for one in (served, static))
    assert made.tokens == wanted.tokens and [one.drafted for one in made.rounds] == [
        one.drafted for one in wanted.rounds
    ]
    with pytest.raises(pytest.fail.Exception):
        taking.generate(PROMPT, **options)


def test_source_stands_aside_at_a_root_far_from_all_others(pair, tmp_path):
    far = sourced_bundle(tmp_path / "b", pair, rule=LOOKUPS | {"max_distance": 1e-9})
    session = load_decoder(far, pair).controller.start(SETTINGS)
    with pytest.warns(UserWarning, match="squared distance"):
        assert session.source(root(5)) is None
    assert session.plan(root(5)) is None and session.bypassed and session.asked == 1
    assert session.plan(root(0)) is None and not session.bypassed and session.asked == 0
    session = load_decoder(sourced_bundle(tmp_path / "c", pair, rule=LOOKUPS), pair).controller.start(SETTINGS)
    with pytest.warns(UserWarning, match="context"):
        assert session.source(root(5, position=5000)) is None


def test_source_weighs_the_chain_of_survival(pair, tmp_path):
    """The same lookup against chains of another rate, or after another round."""
    chains, lookups = (
        load_decoder(sourced_bundle(tmp_path / name, pair, rule=rule), pair).controller.start(SETTINGS)
        for name, rule in (("chains", CHAINS), ("lookups", LOOKUPS))
    )
    assert chains.source(root(5)) is None and chains.plan(root(5)) is None and chains.asked == 1
    assert isinstance(lookups.source(root(5)), Sourced)
    past = WEIGHED | {"tokens": [0.0, 0.0, 0.0, 0.0, 0.0, 99.0, 0.0, 0.0]}  # a chain after a rejection
    session = load_decoder(sourced_bundle(tmp_path / "past", pair, rule=past), pair).controller.start(SETTINGS)
    assert session.source(root(5)) is not None
    session.inner.rejected = 1.0
    assert session.source(root(5)) is None


def test_another_machine_has_other_prices(pair, tmp_path):
    folder, path = sourced_bundle(tmp_path / "b", pair, change=elsewhere), tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE.to_record()))
    kept = load_decoder(folder, pair).controller.settings[1].rule
    with warnings.catch_warnings(action="error"):
        made = load_decoder(folder, pair, latency=path, reprice=True).controller
    assert kept.costs == tuple(map(tuple, WEIGHED["costs"])) and made.settings[1].rule.costs != kept.costs
    assert made.otherwise.settings[1].rule.rate == 5.0 and made.settings[1].rule.share == kept.share


def elsewhere(card):
    one = {"cost_ratio": 3.0, "rule": {"rate": 5.0}, "static_length": 1}
    for made in card["settings"]:
        made["elsewhere"] = [one]


def test_a_card_that_lacks_the_other_controller_is_refused(pair, tmp_path):
    bundle = read_bundle(sourced_bundle(tmp_path / "b", pair))
    del bundle.card[OTHERWISE]
    with pytest.raises(ValueError, match=OTHERWISE):
        Source.from_bundle(bundle)
    assert isinstance(build_controller({"kind": "source", "bundle": str(tmp_path / "b")}), Source)
