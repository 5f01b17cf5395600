"""When a lookup takes over, and what the other controller is told of such rounds."""

from dataclasses import replace

import numpy as np
import pytest

from predictors.controllers import build_controller
from predictors.controllers.base import Controller, Session, Sourced
from predictors.controllers.takeover import Takeover, TakeoverConfig
from predictors.lookup import Found
from predictors.rounds import Forecast, RoundRecord
from tests.signals import SETTINGS, law
from tests.signals import root as bare_root

ROOT = bare_root(cap=12)


def root(match, tokens=8, seen=1, agreed=1, previous=None):
    return replace(ROOT, found=Found(match, tuple(range(tokens)), seen, agreed), previous=previous)


@pytest.mark.parametrize(
    ("rule", "found", "drafts"),
    [
        ({"match": 4}, {"match": 3}, None),
        ({"match": 4}, {"match": 4}, Sourced(8, 0)),
        ({"match": 1, "length": 5, "tail": 2}, {"match": 1}, Sourced(5, 2)),
        ({"match": 1, "length": 10}, {"match": 16, "tokens": 3}, Sourced(3, 0)),
        ({"match": 1, "factor": 1.5}, {"match": 3}, Sourced(4, 0)),
        ({"match": 1, "factor": 0.5}, {"match": 1}, None),
        ({"match": 1, "score": 2.5}, {"match": 2, "tokens": 5, "seen": 2}, Sourced(5, 0)),
        ({"match": 1, "score": 2.6}, {"match": 2, "tokens": 5, "seen": 2}, None),
        ({"match": 1, "score": 3.0, "factor": 1.0}, {"match": 3, "seen": 4, "agreed": 4}, Sourced(3, 0)),
    ],
    ids=str,
)
def test_when_a_lookup_takes_over(rule, found, drafts):
    session = build_controller({"kind": "takeover", **rule}).start(SETTINGS)
    assert session.source(root(**found)) == drafts


def test_arrays_decide_as_numbers_do():
    random = np.random.default_rng(0)
    match, found, seen = (random.integers(0, 9, 200) for _ in range(3))
    agreed = np.minimum(seen, random.integers(0, 5, 200))
    for config in (TakeoverConfig(match=3), TakeoverConfig(match=1, factor=1.3, score=0.7)):
        tokens = config.tokens(match, found)
        takes = config.takes_over(match, tokens, seen, agreed)
        for place, row in enumerate(zip(match.tolist(), found.tolist(), seen.tolist(), agreed.tolist(), strict=True)):
            one = config.tokens(*row[:2])
            assert one == tokens[place]
            assert bool(config.takes_over(row[0], one, *row[2:])) == takes[place]
        assert 0 < takes.mean() < 1


class Curious(Session):
    """Notes what it is told."""

    asked, bypassed, forecasts = 3, True, (Forecast(0, 0.5, 1.0),)

    def __init__(self):
        self.previous, self.ended = [], []

    def plan(self, root):
        self.previous.append(root.previous)
        return 2

    def end_round(self, outcome):
        self.ended.append(outcome)


class Watching(Controller):
    kind, layers, draft_layers, horizon, follows_one_draft = "watching", (3,), (1,), 5, True

    def start(self, settings):
        return Curious()


def test_the_other_controller_sees_its_own_rounds_only():
    session = Takeover(TakeoverConfig(match=4), Watching()).start(SETTINGS)
    own, looked_up, later = RoundRecord(2), RoundRecord(8, looked_up=8), RoundRecord(2)
    assert session.source(root(1)) is None and session.plan(root(1)) == 2
    session.end_round(own)
    assert session.source(root(9, previous=own)) == Sourced(8)
    assert (session.asked, session.bypassed, session.forecasts) == (0, False, ()), "what is told is of another round"
    session.end_round(looked_up)
    assert session.source(root(2, previous=looked_up)) is None and session.plan(root(2, previous=looked_up)) == 2
    session.end_round(later)
    assert (session.asked, session.bypassed, len(session.forecasts)) == (3, True, 1)
    assert session.inner.previous == [None, own] and session.inner.ended == [own, later]
    assert session.source(root(9, previous=later)) == Sourced(8)
    assert session.plan(ROOT) == 2 and session.asked == 3, "where nothing is found no source is chosen"


def test_what_the_other_controller_needs_is_passed_on():
    made = Takeover(TakeoverConfig(), Watching())
    assert (made.layers, made.draft_layers, made.horizon, made.follows_one_draft) == ((3,), (1,), 5, True)
    quiet, looking = (build_controller({"kind": "takeover", "otherwise": {"kind": kind}}) for kind in ("ema", "roc"))
    assert not quiet.start(SETTINGS).stops and looking.start(SETTINGS).stops
    changed = build_controller({"kind": "takeover", "otherwise": {"kind": "confidence"}}).with_epsilon(0.7)
    assert changed.otherwise.epsilon == 0.7
    with pytest.raises(ValueError, match="unknown kind 'nobody'"):
        build_controller({"kind": "takeover", "otherwise": {"kind": "nobody"}})


def stops_at(tops, **options):
    session = build_controller({"kind": "confidence", **options}).start(SETTINGS)
    for _ in range(2):  # rounds are alike
        planned = session.plan(ROOT)
        made = next(
            (place for place, top in enumerate(tops) if bool(session.stop_before(law([top, 1 - top], place)))),
            len(tops),
        )
    return made if planned is None else min(made, planned)


def test_confidence_by_token_and_by_product():
    tops = [0.9, 0.8, 0.9, 0.7, 0.9]
    assert stops_at(tops, epsilon=0.75) == 3 and stops_at(tops, epsilon=0.6) == 5
    assert stops_at([0.5] * 5, epsilon=0.6, min_tokens=2) == 2
    assert stops_at(tops, epsilon=0.6, product=True) == 3, "0.9 · 0.8 · 0.9 · 0.7 = 0.45"
    assert (
        stops_at(tops, epsilon=0.95, product=True) == 1
        and stops_at(tops, epsilon=0.95, product=True, min_tokens=0) == 0
    )
    assert stops_at(tops, epsilon=0.8, product=True, min_tokens=4) == 4, "the product holds all before it"
    assert stops_at(tops, epsilon=0.1, cap=2) == 2 and stops_at(tops, epsilon=0.1, product=True, cap=2) == 2


def test_the_product_of_a_level_is_its_most_confident_node_s():
    session = build_controller({"kind": "confidence", "epsilon": 0.5, "product": True}).start(SETTINGS)
    session.plan(ROOT)
    for drafted, stops in ((0, False), (1, False), (2, True)):
        assert session.stops_before([law([top, 1 - top], drafted) for top in (0.6, 0.75)]) == [stops, stops]
