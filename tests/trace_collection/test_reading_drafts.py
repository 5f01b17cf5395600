"""Traces of a draft that reads the target's states: replay is the real decoder at temperature 0, passes of the draft included."""

import dataclasses
import warnings
from functools import partial

import numpy as np
import pytest

from predictors.bundle import read_bundle
from predictors.controllers import build_controller, learned_controller
from predictors.latency.prices import RoundPrices
from predictors.replay.branches import replayed_branches
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.decode import Clock
from predictors.replay.grid import Starts, decoded
from predictors.replay.policies import static
from predictors.sampling import SamplingSettings
from predictors.training.grow_predictor import GrowGrid, Grown
from predictors.training.tables import RootTable, TextTable
from predictors.tree_choice import scalars_of, state_of
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.branching.draft import BranchConfig
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.chain import ChainConfig, LookupConfig
from runtime.drafting.draft import ModelDraft
from runtime.verification import VERIFIERS
from tests.bundles import grow_bundle, random_bundle, selector_bundle, stop_bundle, survival_bundle
from tests.eagle3 import random_drafter
from tests.predictors.affine_profile import toy_profile
from tests.toys import tiny_llama
from tests.trace_collection.collecting import gather, random_prompts
from trace_collection.texts import TextCollector, TextTraceConfig
from trace_collection.trees import TreeCollector, TreeTraceConfig

GAMMA, BUDGET = 5, 24
CONFIG = TextTraceConfig(
    gamma_max=GAMMA,
    candidates=2,
    prompts=(0, 1, 3),
    max_new_tokens=BUDGET,
    invariant=(1.0,),
    layers=2,
    top=4,
    prompts_per_shard=2,
    threads=1,
)
READ_OFF = [SamplingSettings(0.0), SamplingSettings(1.0, invariant=True)]
COUNTS = ("drafted", "submitted", "accepted", "emitted", "passes", "asked", "bypassed")
PROFILE = toy_profile(draft_first=lambda rows, context: 2 + 0.5 * rows + context / 64)
CHAIN = {
    "method": "speculative",
    "drafter": {"kind": "chain", "gamma": GAMMA, "lookup": {"length": 3}},
    "verifier": "block",
}
TAKEOVER = {"kind": "takeover", "match": 1, "length": 3, "tail": 2, "otherwise": {"kind": "fixed", "gamma": 2}}


@pytest.fixture(scope="module")
def pair():
    target = tiny_llama(8, seed=3, eos_token_id=7)
    return ModelPair(target, random_drafter(target, ids=list(range(7)), seed=3))


@pytest.fixture(scope="module")
def prompts():
    made = random_prompts([9, 12, 15, 11], ["validation", "test", "test", "test"])
    return [prompt._replace(tokens=[token % 7 for token in prompt.tokens]) for prompt in made]


@pytest.fixture(scope="module")
def texts(pair, prompts, tmp_path_factory):
    place = tmp_path_factory.mktemp("texts")
    gather(TextCollector(pair, CONFIG, prompts), place)
    return list(TextTable.read(place).texts())


def controllers(pair, folder):
    yield build_controller({"kind": "fixed"})
    yield build_controller({"kind": "confidence", "epsilon": 0.5})
    yield build_controller({"kind": "roc", "min_pairs": 1})
    yield build_controller({"kind": "cumulative", "levels": 3, "nodes": 4})
    yield build_controller({"kind": "online", "step": 0.5})
    yield learned_controller(read_bundle(random_bundle(folder / "hrad", pair, gamma=3)))
    yield learned_controller(read_bundle(stop_bundle(folder / "stop", pair, "specdecpp", "behind")))
    yield learned_controller(read_bundle(survival_bundle(folder / "survival", pair)))
    yield learned_controller(read_bundle(grow_bundle(folder / "grow", pair)))


def fed_first(monkeypatch):
    """By round: the tokens that the draft's first pass runs over."""
    fed, real = [], ModelDraft._feed_uncached

    def feeding(draft, then=()):
        fed.append(len(draft._uncached) + len(then))
        return real(draft, then)

    monkeypatch.setattr(ModelDraft, "_feed_uncached", feeding)
    return fed


@pytest.mark.parametrize("settings", READ_OFF, ids=str)
def test_lookups_beside_chains_are_replayed(pair, prompts, texts, tmp_path, monkeypatch, settings):
    """Lookups alone, beside chains and beyond them; of wrong leaves replay does not know whether they are the lookup's token."""
    collector, fed, kinds = TextCollector(pair, CONFIG, prompts), fed_first(monkeypatch), set()
    some = [text for text in texts if text.settings == settings]
    for number, (rate, worth) in enumerate([(1, 0.1), (1, 0.6), (1, 3), (0.3, 3), (3, 3)]):
        bundle = grow_bundle(tmp_path / str(number), pair, rate=rate, worth=worth, gamma=GAMMA, lookup=4)
        decoder = load_decoder(bundle, pair)
        policy = ChainPolicy(decoder.controller, GAMMA, lookup=LookupConfig(length=4), leaves=(3,) * GAMMA)
        for text, prompt in zip(some, prompts, strict=True):
            fed.clear()
            request = {"max_new_tokens": BUDGET, "randomness": collector.chance((settings, prompt))}
            out = decoder.generate(prompt.tokens, **request, **dataclasses.asdict(settings))
            assert out.tokens == text.tokens
            rounds = list(replayed(text, policy))
            known = [name for name in (*COUNTS, "looked_up") if name != "drafted"]
            assert [[getattr(one, name) for name in known] for one in rounds] == [
                [getattr(one, name) for name in known] for one in out.rounds[1:]
            ]
            assert [1 + one.behind for one in rounds if one.passes] == fed
            further = [one.drafted - real.drafted for one, real in zip(rounds, out.rounds[1:], strict=True)]
            assert set(further) <= {0, 1}
            kinds |= {(one.looked_up > 0, one.passes > 0, one.beyond > 0, one.accepted > one.chain) for one in rounds}
    assert {(True, False, False, False), (False, True, True, True), (False, True, True, False)} <= kinds


@pytest.mark.filterwarnings("ignore:.*is bypassed")
@pytest.mark.parametrize("settings", READ_OFF, ids=str)
@pytest.mark.parametrize("leaves", [(), (2, 1, 0, 1)], ids=str)
def test_replay_is_the_decoder_where_nothing_is_drawn(pair, prompts, texts, tmp_path, monkeypatch, settings, leaves):
    collector = TextCollector(pair, CONFIG, prompts)
    some, fed, lengths = [text for text in texts if text.settings == settings], fed_first(monkeypatch), set()
    leafed: set[int] = set()
    for controller in controllers(pair, tmp_path):
        decoder = SequentialDecoder(pair, ChainConfig(GAMMA, leaves=leaves), VERIFIERS["block"], controller)
        for text, prompt in zip(some, prompts, strict=True):
            fed.clear()
            request = {"max_new_tokens": BUDGET, "randomness": collector.chance((settings, prompt))}
            out = decoder.generate(prompt.tokens, **request, **dataclasses.asdict(settings))
            assert out.tokens == text.tokens
            rounds = list(replayed(text, ChainPolicy(controller, GAMMA, leaves=leaves)))
            assert [[getattr(one, name) for name in COUNTS] for one in rounds] == [
                [getattr(one, name) for name in COUNTS] for one in out.rounds[1:]
            ], controller.kind
            assert [len(one.forecasts) for one in rounds] == [len(one.forecasts) for one in out.rounds[1:]]
            assert [1 + one.behind for one in rounds if one.passes] == fed, controller.kind
            lengths |= {one.accepted for one in rounds}
            leafed |= {one.drafted - one.submitted for one in rounds}
    assert len(lengths) > 2 and (len(leafed) > 3) == bool(leaves)


def test_lookups_before_it_are_replayed_too(pair, prompts, texts, monkeypatch):
    decoder, fed, sources = build_decoder(pair, CHAIN | {"controller": TAKEOVER}), fed_first(monkeypatch), set()
    policy = ChainPolicy(decoder.controller, GAMMA, lookup=LookupConfig(length=3))
    for text, prompt in zip([text for text in texts if text.settings.greedy], prompts, strict=True):
        fed.clear()
        out = decoder.generate(prompt.tokens, max_new_tokens=BUDGET, randomness=Randomness(0))
        rounds = list(replayed(text, policy))
        real = [(one.submitted, one.looked_up, one.accepted, one.emitted) for one in out.rounds[1:]]
        assert [(one.submitted, one.looked_up, one.accepted, one.emitted) for one in rounds] == real
        assert [1 + one.behind for one in rounds if one.passes] == fed
        sources |= {(one.looked_up > 0, one.accepted > one.looked_up > 0) for one in rounds}
    assert len(sources) == 3


@pytest.mark.parametrize("greedy", [True, False])
def test_arrays_cost_what_the_loop_does(texts, greedy):
    """First passes over accepted tokens included; without them it is cheaper."""
    some = [text for text in texts if text.settings == SamplingSettings(0.0 if greedy else 1.0)]
    starts = Starts.of(some, GAMMA, "block", RoundPrices(PROFILE, not greedy))
    for length in (0, 1, 3):
        totals = decoded(starts, static(starts, length))
        policy = ChainPolicy(build_controller({"kind": "fixed", "gamma": length}), GAMMA)
        seconds = [Clock(PROFILE).policy(text, policy).seconds for text in some]
        assert totals.seconds_X == pytest.approx(seconds, rel=1e-9)
        plain = toy_profile()
        cheaper = [Clock(plain).policy(text, policy).seconds for text in some]
        assert all(one < other for one, other in zip(cheaper, seconds, strict=True)) == (length > 0)


def test_branches_are_replayed(texts):
    config = BranchConfig(gamma=2, k_max=2)
    for text in texts:
        rounds = list(replayed_branches(text, build_controller({"kind": "fixed"}), config, "block"))
        assert sum(one.emitted for one in rounds) == text.length - 1


def test_roots_of_trees_are_those_a_controller_sees(pair, prompts, tmp_path, monkeypatch):
    """State and scalars at the first root and at later ones, where the draft has read the target's states since."""
    config = TreeTraceConfig(
        spacing=4, roots_per_prompt=3, prompts=(0, 1, 3), draws=(1, 1, 1), rules=("nss",), threads=1
    )
    gather(TreeCollector(pair, config, prompts), tmp_path / "trees")
    table = RootTable.read(tmp_path / "trees")
    decoder, seen = load_decoder(selector_bundle(tmp_path / "b", pair), pair), []
    expected = type(decoder.controller).expected

    def looking(controller, root):
        seen.append((root.root.position, state_of(root).numpy(), scalars_of(root).numpy()))
        return expected(controller, root)

    monkeypatch.setattr(type(decoder.controller), "expected", looking)
    by_id, met = {prompt.id: prompt for prompt in prompts}, 0
    for row in range(len(table)):
        text, settings = table.continuation(row), table.settings[table.setting_N[row]]
        tokens = [*by_id[table.column("prompt_id")[row]].tokens, *text]
        seen.clear()
        with warnings.catch_warnings(action="ignore"):
            for seed in range(12):
                decoder.generate(
                    tokens[:-1], max_new_tokens=4, temperature=settings.temperature, randomness=Randomness(seed)
                )
                if seen and seen[0][0] == len(tokens) and _newest(decoder, tokens, settings, seed) == tokens[-1]:
                    break
                seen.clear()
        if seen:
            np.testing.assert_allclose(table.column("state")[row], seen[0][1], rtol=1e-2, atol=2e-3)
            np.testing.assert_allclose(table.column("scalars")[row], seen[0][2], rtol=1e-3, atol=1e-4)
            met += 1
    assert met > len(table) // 2


def _newest(decoder, tokens, settings, seed):
    out = decoder.generate(tokens[:-1], max_new_tokens=1, temperature=settings.temperature, randomness=Randomness(seed))
    return out.tokens[0]


def test_a_twin_that_keeps_accepted_tokens_cached_is_found_out(pair, prompts, texts, monkeypatch):
    """Wrong: the draft's first pass is over the newest token alone, as that of a draft that reads tokens."""
    text, fed = next(text for text in texts if text.settings.greedy), fed_first(monkeypatch)
    decoder = build_decoder(pair, CHAIN | {"drafter": {"kind": "chain", "gamma": GAMMA}})
    decoder.generate(prompts[0].tokens, max_new_tokens=BUDGET, randomness=Randomness(0))
    twin = dataclasses.replace(text, reads_states=False)
    rounds = replayed(twin, ChainPolicy(build_controller({"kind": "fixed"}), GAMMA))
    assert [1 + one.behind for one in rounds if one.passes] != fed


@pytest.mark.parametrize("settings", READ_OFF, ids=str)
@pytest.mark.parametrize("lookup", [0, 4])
def test_arrays_grow_what_the_loop_does(pair, texts, tmp_path, settings, lookup):
    """Rules that draft on or not, submit much or little; a model that is far from its training rows; static leaves."""
    some, found = [text for text in texts if text.settings == settings], LookupConfig(length=lookup) if lookup else None
    starts = dataclasses.replace(Starts.of(some, GAMMA, "block", RoundPrices.at(PROFILE, settings)), lookup=found)
    grid, shapes = GrowGrid(starts), set()
    for number, (rate, worth, limit) in enumerate(
        [(0.5, 1, 1e9), (1, 0.5, 1e9), (1, 2, 1e9), (2, 3, 1e9), (1, 2, 1.0)]
    ):
        edit = partial(dict.update, max_distance=limit)
        options = {"rate": rate, "worth": worth, "change": edit, "lookup": lookup}
        bundle = read_bundle(grow_bundle(tmp_path / str(number), pair, **options))
        controller = learned_controller(bundle)
        made = Grown(
            grid,
            controller.growing,
            limit,
            controller.setting(settings),
            controller.question_seconds(grid.starts.prices.profile),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            policy = ChainPolicy(controller, GAMMA, lookup=found, leaves=(3,) * GAMMA)
            decodes = [Clock(PROFILE).policy(text, policy) for text in some]
        totals = made.asked(made.made.rule)
        assert totals.seconds_X == pytest.approx([one.seconds for one in decodes], rel=1e-9)
        assert totals.rounds_X.tolist() == [one.rounds for one in decodes]
        assert totals.asked_X.tolist() == [one.asked for one in decodes]
        shapes |= {(int(totals.submitted_X.sum()), int(totals.passes_X.sum()))}
    assert len(shapes) >= (4 if lookup else 5)
    for length, leaves in [(2, (2, 1)), (3, (0, 0, 3)), (0, ())]:
        policy = ChainPolicy(build_controller({"kind": "fixed", "gamma": length}), GAMMA, leaves=leaves)
        decodes = [Clock(PROFILE).policy(text, policy) for text in some]
        assert grid.static(length, leaves).seconds_X == pytest.approx([one.seconds for one in decodes], rel=1e-9)
