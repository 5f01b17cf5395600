"""``draftwright drift``: what it reads, says and exits with."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from pipelines.cli import main
from pipelines.drift import DRIFT, UNKNOWN
from predictors.bundle import bundle_hash
from predictors.monitoring import Level, Reference, RequestCounts
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.toys import tiny_llama

LEVELS = {"accepted": Level(2.0, 0.5, 0.06, 72, 60), "residual": Level(0.01, 0.1, 0.012, 72, 60)}


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))


@pytest.fixture
def bundle(pair, tmp_path):
    entry = {"settings": {"T=0": asdict(Reference(48.0, LEVELS))}, "missing": None}
    return random_bundle(tmp_path / "bundle", pair, change=lambda card: card.update(reference=entry))


def served(bundle, count, accepted=2.0, setting="T=0", residual=0.01, seed=0):
    """Lines of requests of 40 tokens whose means are as given."""
    random = np.random.default_rng(seed)
    for rate in accepted + random.normal(scale=0.5, size=count):
        outcomes = random.binomial(10, 0.6)
        probability = outcomes - 10 * (residual + random.normal(scale=0.1))
        rounds = {"rounds": 10, "accepted": 10 * rate, "tested": 10, "outcomes": outcomes, "probability": probability}
        made = asdict(RequestCounts(48, 3, 40)) | rounds
        yield json.dumps({"bundle": bundle_hash(bundle), "setting": setting, "route": None} | made)


def write(tmp_path, *parts):
    (tmp_path / "records").write_text("".join(line + "\n" for part in parts for line in part))


def drift(bundle, tmp_path, *more):
    """Its exit code."""
    try:
        main(["drift", "--bundle", str(bundle), "--records", str(tmp_path / "records"), *more])
    except SystemExit as end:
        return end.code
    return 0


def test_a_stationary_stream_ends_in_0(bundle, tmp_path, capsys):
    write(tmp_path, served(bundle, 80))
    assert drift(bundle, tmp_path, "--json", str(tmp_path / "out.json")) == 0
    said = capsys.readouterr().out
    assert "T=0: 64 requests of 40 tokens, the reference's had 48" in said and said.endswith("no drift\n")
    assert "DRIFT" not in said and "left out" not in said
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["bundle"] == bundle_hash(bundle) and len(found["comparisons"]) == 2
    for one in found["comparisons"]:
        level = LEVELS[one["statistic"]]
        assert (one["reference"], one["requests"], one["drifted"]) == (level.mean, 64, False)
        error = np.sqrt(level.error**2 + level.deviation**2 / 64)
        assert one["t"] == pytest.approx((one["observed"] - level.mean) / error, rel=0.25)
        assert one["detectable"] == pytest.approx((2.86 + 1.29) * error, rel=0.2)


@pytest.mark.parametrize(("shift", "name"), [({"accepted": 1.2}, "accepted"), ({"residual": 0.2}, "residual")])
def test_the_last_requests_count_and_drift_ends_in_3(bundle, tmp_path, capsys, shift, name):
    old, new = served(bundle, 200), served(bundle, 64, **shift, seed=1)
    write(tmp_path, old, new)
    assert drift(bundle, tmp_path) == DRIFT
    assert capsys.readouterr().out.endswith(f"drift: {name} at T=0\n")
    write(tmp_path, served(bundle, 64, **shift), served(bundle, 200))
    assert drift(bundle, tmp_path) == 0


def test_rotated_files_come_first(bundle, tmp_path):
    write(tmp_path, served(bundle, 64, 1.0))
    (tmp_path / "records").rename(tmp_path / "records.2")
    write(tmp_path, served(bundle, 40))
    (tmp_path / "records").rename(tmp_path / "records.1")
    (tmp_path / "records.lock").touch()
    assert drift(bundle, tmp_path, "--window", "32") == 0
    write(tmp_path, served(bundle, 40, 1.0))
    assert drift(bundle, tmp_path, "--window", "32") == DRIFT


def test_what_is_not_this_bundles_is_left_out(bundle, tmp_path, capsys):
    others = [line.replace(bundle_hash(bundle), "0" * 64) for line in served(bundle, 64, 9.0)]
    write(tmp_path, served(bundle, 64), others, ['{"bundle": "cut o', "3", '{"bundle": "x"}'])
    assert drift(bundle, tmp_path) == 0
    said = capsys.readouterr().out
    assert "64 lines of other bundles were left out" in said and "3 lines damaged were left out" in said


def test_what_cannot_be_compared_ends_in_4(bundle, pair, tmp_path, capsys):
    write(tmp_path, served(bundle, 15), served(bundle, 40, setting="T=0.6"))
    assert drift(bundle, tmp_path) == UNKNOWN
    said = capsys.readouterr().out
    assert "T=0: 15 requests are too few; a comparison takes 16" in said
    assert "T=0.6: 40 requests, and" in said and "traces.positions.temperatures" in said
    old = random_bundle(tmp_path / "old", pair)
    write(tmp_path, served(old, 64))
    assert drift(old, tmp_path) == UNKNOWN
    assert "no reference there: the bundle was exported before there were references" in capsys.readouterr().out
    assert drift(bundle, tmp_path) == UNKNOWN
    assert "was another content of it served?" in capsys.readouterr().out


def test_mistakes_are_named(bundle, tmp_path):
    assert "No such file" in drift(bundle, tmp_path)
    write(tmp_path, [])
    assert "--window must be >= 16" in drift(bundle, tmp_path, "--window", "8")
    assert "between 0 and 1" in drift(bundle, tmp_path, "--false-alarm", "0")
