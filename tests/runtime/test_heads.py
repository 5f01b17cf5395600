"""Controllers with a head in the decoder: H-RAD's classes and explicit lengths. What holds of all controllers is tested in
`test_controller_contract`."""

import itertools
import warnings
from dataclasses import replace

import pytest
import torch

from predictors.bundle import read_bundle
from predictors.controllers import build_controller, learned_controller
from predictors.controllers.head import HRAD, HeadSession, Length
from predictors.features import assemble, state_vector
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.branching.draft import BranchConfig
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.chain import ChainConfig, ChainDraft
from runtime.drafting.drafted import DraftedTree
from runtime.tree import EMPTY_TREE, chain_tree
from runtime.verification import VERIFIERS
from tests.ancestral import target_law
from tests.bundles import head_setting, random_bundle
from tests.by_rounds import decoded_law, merged_law
from tests.greedy import greedy_text
from tests.predictors.affine_profile import PROFILE
from tests.runtime.test_controller_contract import GAMMA, SETTINGS, law, root
from tests.runtime.test_exactness import PROMPT
from tests.toys import TableModel, tiny_llama, total_variation

FEATURES = ("paper", "extended")


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


@pytest.fixture(scope="module")
def head(pair, tmp_path_factory):
    """Build a head of a kind over a feature set."""

    def build(kind, features):
        folder = random_bundle(tmp_path_factory.mktemp(kind) / "b", pair, features, gamma=GAMMA, kind=kind)
        return build_controller({"kind": kind, "bundle": str(folder)})

    return build


def length_bundle(folder, pair, features="extended", **options):
    return random_bundle(folder, pair, features, kind="length", **options)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("kind", ["hrad", "length"])
def test_a_learned_decision_stands_for_its_round(head, kind, features):
    """Laws behind the first cannot move it, and every round decides anew."""
    session = head(kind, features).start(SETTINGS)
    decisions = []
    for seed in range(40):
        start = root(seed=seed)
        session.plan(start)
        session.stop_before(law([0.6, 0.4], drafted=0, place=start))
        decisions.append(session.decision)
        session.stop_before(law([0.9, 0.1], drafted=1, place=start))
        assert session.decision == decisions[-1] is not None
    assert len(set(decisions)) > 1, "a random head that always decides alike tests little"


@pytest.mark.parametrize("kind", ["hrad", "length"])
def test_a_head_reads_what_the_target_tested(head, kind):
    """Of a round that drafted six levels, submitted three and was hit at the branch point too, it knows 3 of 3 tokens."""
    controller, plain = head(kind, "extended"), RoundRecord(drafted=3, accepted=3)
    branched = RoundRecord(drafted=9, levels=6, submitted=3, accepted=4)
    other = RoundRecord(drafted=4, accepted=4)  # what levels and hits would make of it
    found = []
    for previous in (plain, branched, other):
        start = replace(root(seed=0), previous=previous)
        found.append(controller.predict(start, law([0.6, 0.4], drafted=0, place=start))[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_another_soft_threshold_makes_another_hrad(head):
    """A head that says "some" stops at the ε it is given; the controller it came from keeps its own."""
    made = head("hrad", "paper")
    changed = made.with_epsilon(0.9)
    stops = []
    for controller in (made, changed):
        controller.predict = lambda start, law: (torch.tensor([0.0, 1.0, 0.0]), 0.0, ())
        session, start = controller.start(SETTINGS), root(seed=0)
        session.plan(start)
        stops.append(bool(session.stop_before(law([0.6, 0.4], drafted=1, place=start))))
    assert stops == [False, True] and made.settings[0].rule.epsilon == 0.5
    with pytest.raises(ValueError, match="'length' controller has no soft threshold"):
        head("length", "paper").with_epsilon(0.9)


def recorded_decisions(decoder):
    """The class of every prediction from now on."""
    decisions, predict = [], decoder.controller.predict

    def recorded(root, law):
        probabilities, *place = predict(root, law)
        decisions.append(int(probabilities.argmax()))
        return probabilities, *place

    decoder.controller.predict = recorded
    return decisions


@pytest.mark.parametrize("static_gamma, retained_gamma", [(1, 3), (2, 2)])
@pytest.mark.parametrize("aside", [{"max_distance": 1e-9}, {"rule": None}])
def test_what_is_retained_has_rules_of_its_own(pair, tmp_path, static_gamma, retained_gamma, aside):
    """A rule that always says none for drafting and all for retention, and the other way round; then both standing aside, or none
    that pays."""
    always = {s: {"epsilon": 0.5, "none_probability": [0.0, 2.0][s == 2], "all_probability": 0.0} for s in (0, 2)}
    twin = ModelPair(pair.target.model, pair.target.model)
    for drafting, retention in ((0, 2), (2, 0)):
        folder = random_bundle(
            tmp_path / f"{drafting}", twin, gamma=3, rule=always[drafting], retention=always[retention]
        )
        decoder = load_decoder(
            folder, twin, {"method": "branch_parallel", "preset": "specbranch", "gamma": 3, "overlap": "none"}
        )
        rounds = decoder.generate([1, 2, 3], max_new_tokens=30, eos_token_id=[]).rounds[1:-3]
        survived = [not before.ends_segment for before in rounds[:-1]]
        submitted = {
            s: {r.submitted for r, after in zip(rounds[1:], survived, strict=True) if after == s} for s in (True, False)
        }
        assert submitted[True] == {3 * (retention == 2)} and submitted[False] <= {3 * (drafting == 2)}
    lengths = {"static_gamma": static_gamma, "retained_gamma": retained_gamma}
    folder = random_bundle(tmp_path / "aside", twin, gamma=3, **aside, **lengths)
    decoder = load_decoder(
        folder, twin, {"method": "branch_parallel", "preset": "specbranch", "gamma": 3, "overlap": "none"}
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rounds = decoder.generate([1, 2, 3], max_new_tokens=30, eos_token_id=[]).rounds[1:-3]
    assert [record.bypassed for record in rounds] == [bool(told)] * len(rounds) and bool(told) == ("rule" not in aside)
    assert rounds[0].submitted == static_gamma and rounds[1].submitted == retained_gamma


@pytest.mark.parametrize("feature_set", ["paper", "extended"])
def test_a_head_is_not_asked_where_its_rule_would_not_listen(pair, tmp_path, feature_set):
    """The same text and rounds as under the confidence rule, whose ε it has."""
    deaf = {"epsilon": 0.5, "none_probability": 1.01, "all_probability": 1.01}
    decoder = load_decoder(random_bundle(tmp_path / "b", pair, feature_set, gamma=3, rule=deaf), pair)
    decisions = recorded_decisions(decoder)
    soft = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}, "verifier": "block"}
    soft = build_decoder(pair, soft | {"controller": {"kind": "confidence", "epsilon": 0.5}})
    out, expected = (d.generate([1, 2, 3], max_new_tokens=30) for d in (decoder, soft))
    assert not decisions
    assert [(r.submitted, r.accepted) for r in out.rounds] == [(r.submitted, r.accepted) for r in expected.rounds]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_served_features_are_the_contracts(pair, tmp_path, monkeypatch, temperature):
    """What the head saw, recomputed without caches by the code that training uses."""
    bundle = random_bundle(tmp_path / "b", pair, "extended", gamma=3, temperatures=(temperature,), seed=1)
    decoder = load_decoder(bundle, pair)
    predict, seen = decoder.controller.predict, []

    def some(root, law):
        predict(root, law)
        return torch.tensor([0.0, 1.0, 0.0]), 0.0, ()

    decoder.controller.predict = some
    features = decoder.controller.features
    monkeypatch.setattr(decoder.controller, "features", lambda root, law: seen.append(features(root, law)) or seen[-1])
    steps = list(
        decoder.stream([1, 2, 3], max_new_tokens=30, temperature=temperature, randomness=Randomness(0), observe=True)
    )
    tokens, previous = [1, 2, 3, *steps[0].tokens], None
    for row, step in zip(seen, steps[1:], strict=False):
        root = step.evidence.root
        with torch.no_grad():
            law = pair.draft.model(torch.tensor([tokens])).logits[0, -1].softmax(-1)
        expected = assemble(
            decoder.controller.spec,
            state_vector(root.hidden_KD, root.embedding_E).unsqueeze(0),
            torch.tensor([-1 if previous is None else previous.drafted]),
            torch.tensor([-1 if previous is None else previous.accepted]),
            law.max().reshape(1),
            -(law * law.log()).sum().reshape(1),
        )
        torch.testing.assert_close(row, expected, atol=1e-4, rtol=1e-4)
        tokens, previous = [*tokens, *step.tokens], step.record
    assert len(seen) >= 3


def test_epsilon_is_used(pair, tmp_path):
    """A head that always says "some" drafts as the confidence controller with its ε."""
    lengths = []
    for epsilon in (0.02, 0.5):
        rule = {"epsilon": epsilon}
        decoder = load_decoder(random_bundle(tmp_path / f"b{epsilon}", pair, gamma=5, rule=rule), pair)
        decoder.controller.predict = lambda root, law: (torch.tensor([0.0, 1.0, 0.0]), 0.0, ())
        controller = {"kind": "confidence", "epsilon": epsilon}
        config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 5}, "controller": controller}
        runs = [
            [record.drafted for record in item.generate([1, 2], max_new_tokens=30).rounds]
            for item in (decoder, build_decoder(pair, config))
        ]
        assert runs[0] == runs[1]
        lengths.append(runs[0])
    assert lengths[0] != lengths[1]


def test_other_layers_than_the_heads_are_refused(pair, tmp_path):
    decoder = load_decoder(random_bundle(tmp_path / "b", pair), pair)
    with pytest.raises(ValueError, match=r"layers \(0,\).*taps \(1, 2\)"):
        decoder.stream([1, 2], layers=(0,))


def rounds_of(decoder, temperature):
    out = decoder.generate(
        [1, 2, 3], max_new_tokens=24, temperature=temperature, randomness=Randomness(0), eos_token_id=[]
    )
    return out.rounds[1:-3]


@pytest.mark.parametrize("kind", ["hrad", "length"])
@pytest.mark.parametrize("feature_set", ["paper", "extended"])
def test_every_captured_setting_has_a_rule_of_its_own(pair, tmp_path, kind, feature_set):
    """A head that is asked at temperature 0, and where it does not pay, at 1, a planned chain without a question."""

    def change(card):
        card["settings"][1] |= {"rule": None, "retention": None, "static_gamma": 3, "retained_gamma": 3}

    folder = random_bundle(tmp_path / "b", pair, feature_set, gamma=3, kind=kind, change=change)
    decoder = load_decoder(folder, pair)
    asked = {temperature: {r.asked for r in rounds_of(decoder, temperature)} for temperature in (0.0, 1.0)}
    assert asked == {0.0: {1}, 1.0: {0}}
    assert {record.drafted for record in rounds_of(decoder, 1.0)} == {3}
    config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}}
    again = build_decoder(pair, config | {"controller": {"kind": kind, "bundle": str(folder), "asked": True}})
    assert {record.asked for record in rounds_of(again, 1.0)} == {1}


def test_rules_chosen_by_another_profile_are_told(pair, tmp_path):
    folder = random_bundle(tmp_path / "b", pair)
    made = learned_controller(read_bundle(folder))
    with pytest.warns(UserWarning, match="chosen by another latency profile"):
        assert made.at_latency(PROFILE, reprice=False) is made
    with pytest.raises(ValueError, match="reprice is not possible"):
        made.at_latency(PROFILE, reprice=True)
    prices = {"profile_hash": PROFILE.profile_hash}
    own = random_bundle(tmp_path / "own", pair, change=lambda card: card.update(prices=prices))
    with warnings.catch_warnings(action="error"):
        learned_controller(read_bundle(own)).at_latency(PROFILE, reprice=False)


def test_a_head_asked_anyway_retains_by_the_rule_tried_for_that(pair, tmp_path):
    folder = random_bundle(tmp_path / "b", pair, rule=None, retention=None, tried_retention={"epsilon": 0.9})
    made = build_controller({"kind": "hrad", "bundle": str(folder), "asked": True}).settings[0]
    assert made.of(True).epsilon == 0.9 != made.of(False).epsilon


def test_every_captured_setting_has_a_calibration_of_its_own(pair, tmp_path):
    """The same features and head: at temperature 1 the bias makes every class none."""

    def change(card):
        card["settings"][1]["calibration"]["bias"] = [1e3, 0.0, 0.0]

    decoder = load_decoder(random_bundle(tmp_path / "b", pair, "paper", gamma=3, change=change), pair)
    assert {record.drafted for record in rounds_of(decoder, 1.0)} == {0} != {r.drafted for r in rounds_of(decoder, 0.0)}


@pytest.mark.parametrize("kind", ["hrad", "length"])
def test_a_head_that_is_never_asked_taps_nothing(pair, tmp_path, kind):
    """Layers cost time at every pass; with one setting that asks, they are tapped."""
    folder = random_bundle(tmp_path / "b", pair, gamma=3, kind=kind, rule=None)
    decoder = load_decoder(folder, pair)
    assert decoder.controller.layers == () and not decoder.controller.start(SamplingSettings(0.0)).stops
    out = decoder.generate([1, 2, 3], max_new_tokens=20)
    assert out.tokens == greedy_text(pair.target.model, [1, 2, 3], 20) and {record.asked for record in out.rounds} == {
        0
    }
    asking = random_bundle(
        tmp_path / "c",
        pair,
        gamma=3,
        kind=kind,
        change=lambda card: card["settings"][0].update(rule=None, retention=None),
    )
    assert load_decoder(asking, pair).controller.layers == (1, 2)


# ---- decisions driven through their values


def toys():
    return ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))


def scripted(controller, predict):
    """The controller with ``predict(root, law)``, a class, for a head."""
    num_classes = controller.num_classes

    def one_hot(root, law):
        return torch.nn.functional.one_hot(torch.tensor(predict(root, law)), num_classes).double(), 0.0, ()

    controller.predict, controller.layers = one_hot, ()
    return controller


def toy_decoder(controller, predict, gamma=2):
    """A decoder of float64 table models under a scripted head."""
    return SequentialDecoder(toys(), ChainConfig(gamma=gamma), VERIFIERS["block"], scripted(controller, predict))


def law_error(decoder, length=5):
    """Total variation of the decoder's output law from the target's own."""
    made = decoded_law(decoder, PROMPT, length, SETTINGS)
    return total_variation(made, target_law(decoder.pair.target, PROMPT, length, SETTINGS))


def all_a_head_may_see(root, law):
    return (root.position + (0 if law is None else int(law.confidence > 0.6))) % 3


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("kind", [HRAD, Length])
def test_output_law_with_the_decision_driven_through_its_values(pair, tmp_path, kind, features):
    """Decisions that depend on everything a head may see, on toy models in float64."""
    controller = kind(read_bundle(random_bundle(tmp_path / "b", pair, features, gamma=2, kind=kind.kind)))
    assert law_error(toy_decoder(controller, all_a_head_may_see)) < 1e-9


@pytest.mark.parametrize("retention", ["posterior", "prior"])
@pytest.mark.parametrize("features", FEATURES)
def test_output_law_beside_branches(pair, tmp_path, features, retention):
    """In the branch-parallel loop the length is also how much of a branch is kept, or how far branches are drafted."""
    controller = scripted(
        Length(read_bundle(length_bundle(tmp_path / "b", pair, features, gamma=2))), all_a_head_may_see
    )
    config = BranchConfig(gamma=2, k_max=1, k_rule="const", overlap="none", retention=retention)
    decoder = BranchParallelDecoder(toys(), config, VERIFIERS["block"], controller)
    settings = SamplingSettings(1.0)
    law = merged_law(decoder, PROMPT, 5, settings)
    assert total_variation(law, target_law(decoder.pair.target, PROMPT, 5, settings)) < 1e-9


def test_a_length_that_saw_the_draft_is_noticed(pair, tmp_path, monkeypatch):
    """The wrong twin: the whole draft is drawn, and its length decided from what was drawn."""
    honest = ChainDraft.draft

    def draft(self, root, cap, session, clock):
        drafted = honest(self, root, cap, session, clock)
        tree, laws = drafted.tree, drafted.laws
        kept = next((place for place, token in enumerate(tree.token_list) if token == 2), len(laws))
        self._scratch = {node: place for node, place in self._scratch.items() if node < kept}
        if kept == 0:
            return DraftedTree(EMPTY_TREE, [])
        probs = torch.cat([tree.draft_probs[:kept], tree.draft_probs[-1:]])
        return DraftedTree(chain_tree(tree.tokens[:kept], probs), laws[:kept])

    controller = Length(read_bundle(length_bundle(tmp_path / "b", pair, "paper", gamma=2)))
    decoder = toy_decoder(controller, lambda root, law: 2)
    assert law_error(decoder, 4) < 1e-9
    monkeypatch.setattr(ChainDraft, "draft", draft)
    assert law_error(decoder, 4) > 1e-3


def tokens_and_passes(decoder, monkeypatch, rounds=12):
    """Drafted tokens and draft passes of each round."""
    passes, feed = [], ChainDraft._next_row
    monkeypatch.setattr(ChainDraft, "_next_row", lambda self, tokens: (passes.append(1), feed(self, tokens))[1])
    steps = decoder.stream(PROMPT, max_new_tokens=200, temperature=1.0, randomness=Randomness(0))
    found = []
    for step in itertools.islice(steps, 1, 1 + rounds):
        found.append((step.record.drafted, len(passes)))
        passes.clear()
    return found


def in_turn(root, law):
    """Lengths 0, 1, 2, 3, in the order of the rounds."""
    in_turn.calls += 1
    return in_turn.calls % 4


@pytest.fixture
def in_turn_rounds(pair, tmp_path, monkeypatch):
    def run(features):
        in_turn.calls = -1
        controller = Length(read_bundle(length_bundle(tmp_path / "b", pair, features, gamma=3)))
        return tokens_and_passes(toy_decoder(controller, in_turn, gamma=3), monkeypatch)

    return run


@pytest.mark.parametrize(("features", "none"), [("paper", 0), ("extended", 1)])
def test_exactly_that_many_tokens_are_drafted_in_as_many_passes(in_turn_rounds, features, none):
    """Only reading the first law to decide on nothing costs a pass that drafts no token."""
    assert in_turn_rounds(features) == [(0, none), (1, 1), (2, 2), (3, 3)] * 3


def test_a_law_read_only_to_stop_is_noticed(in_turn_rounds, monkeypatch):
    monkeypatch.setattr(HeadSession, "stop_after", lambda self, drawn: False)
    assert in_turn_rounds("extended") == [(0, 1), (1, 2), (2, 3), (3, 3)] * 3


@pytest.mark.parametrize("features", FEATURES)
def test_the_rule_is_the_bundles(pair, tmp_path, features):
    """A head that sees none or all of three: the likeliest length drafts nothing, the expected value everything."""
    drafted = {}
    for choice in ("argmax", "expectation"):
        rule = {"choice": choice, "draft_cost": 0.1}
        decoder = load_decoder(length_bundle(tmp_path / choice, pair, features, gamma=3, rule=rule), pair)
        decoder.controller.predict = lambda root, law: (torch.tensor([0.5, 0.0, 0.0, 0.5]), 0.0, ())
        out = decoder.generate([1, 2, 3], max_new_tokens=30)
        drafted[choice] = {record.drafted for record in out.rounds[1:6]}  # none that the budget cuts
    assert drafted == {"argmax": {0}, "expectation": {3}}


def test_hrads_head_is_no_length_predictor(pair, tmp_path):
    def rename(card):
        rule = {"choice": "argmax", "draft_cost": 0.1}
        card.update(kind="length", settings=[head_setting(0.0, 4, rule, {})])

    folder = random_bundle(tmp_path / "b", pair, gamma=3, change=rename)
    with pytest.raises(
        ValueError, match="length at gamma=3 has 4 classes, but the head has 3. Export the bundle again"
    ):
        load_decoder(folder, pair)
