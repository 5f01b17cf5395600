"""The proposer that vLLM loads: what it finds, how much of it is drafted, and the rule fitted from recorded texts."""

import ast
import json
import shutil
import sys
from itertools import cycle, islice, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipelines.engines import draftwright_proposer
from pipelines.engines.draftwright_proposer import Rule, found
from pipelines.engines.from_texts import lookup_rule, lookups_of, served
from predictors.controllers.source import Seen, lookup_survival
from predictors.latency.prices import RoundPrices
from predictors.lookup import founds
from predictors.sampling import SamplingSettings
from predictors.training.tables import TextTable
from tests.predictors_training.synthetic_drafts import LONG, drafted_texts
from tests.predictors_training.synthetic_texts import GAMMA_MAX, write_texts
from tests.predictors_training.test_survival import PROFILE

FLAT, STEEP = ({"rows": [1, 2], "seconds": [1.0, 1.0 + slope]} for slope in (0.02, 0.9))
HAZARD = [-1.5, 0.9, -0.3, 0.1, 1.2, 0.3, 0.4, 0.2]
RECORD = {"longest": 16, "length": 6, "hazard": HAZARD, **FLAT}


def texts(random, count):
    """Of few tokens, so that they repeat themselves."""
    return [random.integers(random.integers(2, 6), size=random.integers(2, 60)) for _ in range(count)]


def proposer(folder, limit=1000, most=6, **changes):
    """As vLLM makes it, from a copy of the file beside a rule."""
    shutil.copy(draftwright_proposer.__file__, folder / "copied_proposer.py")
    (folder / "rule.json").write_text(json.dumps(RECORD | changes))
    sys.path.insert(0, str(folder))
    try:
        sys.modules.pop("copied_proposer", None)
        made = __import__("copied_proposer").Lookup
    finally:
        sys.path.remove(str(folder))
    counts = SimpleNamespace(num_speculative_tokens=most)
    return made(SimpleNamespace(speculative_config=counts, model_config=SimpleNamespace(max_model_len=limit)))


def padded(some, beyond):
    """All tokens [requests, longest], with other tokens ``beyond`` each request."""
    made = np.full((len(some), max(map(len, some)) + 9), beyond)
    for row, tokens in zip(made, some, strict=True):
        row[: len(tokens)] = tokens
    return [[1]] * len(some), np.array([len(one) for one in some]), made


def continued(found, most=6):
    """What is drafted of what was found: after the newest token it begins anew."""
    return list(islice(cycle(found.tokens), most)) if found.length else []


def slowly(some, rule):
    """The rule by its formula: of all ways to draft prefixes the best; of equals the shortest, earlier requests first."""
    batch, survival, options = len(some), [], []
    for tokens in some:
        one = founds(tokens.tolist(), 6)[-1]
        options.append(continued(one))
        seen = Seen(one.length, 6, one.seen, one.agreed, 0.0, 0.0)
        survival.append(lookup_survival(rule.hazard, seen, len(options[-1])).tolist())

    def worth(counts):
        taken = sum(sum(chances[:count]) for chances, count in zip(survival, counts, strict=True))
        return (batch + taken) / float(rule.seconds(batch + sum(counts)))

    ways = product(*(range(len(one) + 1) for one in survival))
    best = max(ways, key=lambda counts: (round(worth(counts), 9), -sum(counts), counts))
    return [one[:count] for one, count in zip(options, best, strict=True)]


def test_matches_are_those_that_the_rule_was_fitted_on():
    for tokens in texts(np.random.default_rng(0), 60):
        for longest in (2, 16):
            expected = founds(tokens.tolist(), 6, longest)[-1]
            following, *numbers = found(tokens, 6, longest)
            assert numbers == [expected.length, expected.seen, expected.agreed]
            assert following.tolist() == continued(expected)


@pytest.mark.parametrize("slope", [0.1, 0.3, 0.7])
def test_it_proposes_what_a_slow_search_finds_best(tmp_path, slope):
    random, prices = np.random.default_rng(1), {"rows": [1, 4, 5], "seconds": [1.0, 1.0, 1.0 + slope]}
    made, rule, lengths = proposer(tmp_path, **prices), Rule(RECORD | prices), set()
    for _ in range(25):
        some = texts(random, random.integers(1, 4))
        drafts = made.propose(*padded(some, beyond=0))
        assert drafts == slowly(some, rule)
        lengths |= {len(one) for one in drafts}
    assert len(lengths) > 2, "it always drafts alike"


def test_it_reads_its_own_request_alone_and_within_bounds(tmp_path):
    made, some = proposer(tmp_path), texts(np.random.default_rng(2), 8)
    drafts = made.propose(*padded(some, beyond=0))
    assert drafts == made.propose(*padded(some, beyond=3)) and any(drafts)
    _, counts, tokens = padded(some, beyond=0)
    unread = made.propose([[] if place % 2 else [1] for place in range(8)], counts, tokens)
    assert all(not one for one in unread[1::2]) and made.propose([], counts[:0], tokens[:0]) == []
    repeats = [np.tile([1, 2, 3], 10)]
    assert len(made.propose(*padded(repeats, 0))[0]) == 6
    assert len(proposer(tmp_path, limit=32).propose(*padded(repeats, 0))[0]) == 2
    assert len(proposer(tmp_path, most=4).propose(*padded(repeats, 0))[0]) == 4
    for nothing in ([7], [1, 2, 3, 4, 5]):
        assert made.propose(*padded([np.array(nothing)], 0)) == [[]]
    assert proposer(tmp_path, **STEEP).propose(*padded(some, 0)) == [[]] * 8, "no row is worth its price"


def test_prices_go_on_straight():
    rule = Rule(RECORD | {"rows": [4, 8, 12], "seconds": [2.0, 2.0, 3.0]})
    assert rule.seconds(np.array([1, 6, 10, 16])) == pytest.approx([2.0, 2.0, 2.5, 4.0])
    assert Rule(RECORD | {"rows": [1, 2], "seconds": [2.0, 1.9]}).seconds(9) == 1.9, "never cheaper"


def test_its_file_needs_numpy_alone():
    tree = ast.parse(Path(draftwright_proposer.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {one.module if isinstance(one, ast.ImportFrom) else one.names[0].name for one in imports}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folders = {told_by: tmp_path_factory.mktemp(told_by) / "texts" for told_by in ("match", "none")}
    return {name: TextTable.read(write_texts(folder, drafted_texts(lookups=name))) for name, folder in folders.items()}


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_fitted_rule_drafts_after_long_matches(tables, heat):
    settings, prices = SamplingSettings(heat), RoundPrices(PROFILE, heat > 0)
    record, evidence = lookup_rule(tables["match"], settings, prices)
    assert json.loads(json.dumps([record, evidence])) == [record, evidence]
    rule = Rule(record)
    lengths = [int(rule.lengths(rule.survival([GAMMA_MAX], [match], [4], [2]), 1)[0]) for match in (1, LONG, 8)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1] and lengths[-1] >= 3
    assert evidence["gain_over"]["plain"]["low"] > 0 and evidence["gain_over"]["fixed"]["value"] > 0.05
    _, untouched = lookup_rule(tables["none"], settings, prices)
    assert abs(untouched["gain_over"]["plain"]["value"]) < 0.03
    dear, _ = lookup_rule(tables["match"], settings, prices, {"rows": [1, 2], "seconds": [1.0, 1.95]})
    assert not Rule(dear).lengths(Rule(dear).survival([GAMMA_MAX], [8], [4], [2]), 1)[0]


def test_steps_and_tokens_are_counted_by_the_text(tables):
    lookups = lookups_of(tables["match"], "test", SamplingSettings(0.0), RoundPrices(PROFILE, False))
    rule, left_X = Rule(RECORD | {"rows": [1, 2], "seconds": [1.0, 1.5]}), lookups.starts.left_XS[:, 0]
    tokens_X, seconds_X = served(lookups, rule, np.zeros_like(lookups.match_XS))
    assert (tokens_X == left_X).all() and (seconds_X == left_X).all()
    one_XS = np.minimum(lookups.most_XS, 1)
    _, seconds_X = served(lookups, rule, one_XS)
    for place, (right_S, drafted_S) in enumerate(zip(lookups.right_XS, one_XS, strict=True)):
        start, seconds = 0, 0.0
        while start < left_X[place]:
            seconds += 1 + 0.5 * drafted_S[start]
            start += 1 + min(right_S[start], drafted_S[start])
        assert seconds_X[place] == seconds
