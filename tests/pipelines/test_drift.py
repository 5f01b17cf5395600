"""``draftwright drift``: what it reads, says and exits with."""

import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import pipelines.commands.drift
from pipelines.cli import main
from pipelines.commands.drift import DRIFT, LEAST, UNKNOWN, read_records
from predictors.bundle import bundle_hash, read_bundle
from predictors.monitoring import AlarmLevel, Reference, RequestCounts, fractions_of, read_reference
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.toys import tiny_llama

DEVIATIONS = {"accepted": 0.5, "residual": 0.1}
LEVELS = {"accepted": AlarmLevel(2.0, 0.06, 59.0, 72), "residual": AlarmLevel(0.01, 0.012, 59.0, 72)}


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
        number = int(random.integers(6, 15))
        made = asdict(RequestCounts(48, 3, 40)) | {"rounds": number, "accepted": number * rate}
        made |= {"tested": 10, "outcomes": outcomes, "probability": probability}
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


def ratio(lines, name):
    """Of sums over the last 64."""
    fractions = [fractions_of(json.loads(line))[name] for line in lines[-64:]]
    return sum(above for above, _ in fractions) / sum(below for _, below in fractions)


def test_a_stationary_stream_ends_in_0(bundle, tmp_path, capsys):
    last = list(served(bundle, 80))
    write(tmp_path, last)
    assert drift(bundle, tmp_path, "--json") == 0
    found, said = capsys.readouterr()
    found = json.loads(found)
    assert said == found["verdict"] + "\n"
    assert found["settings"] == {"T=0": {"requests": 64, "tokens": 40, "reference_tokens": 48}}
    assert found["bundle"] == bundle_hash(bundle) and len(found["comparisons"]) == 2
    for one in found["comparisons"]:
        level = LEVELS[one["statistic"]]
        assert (one["reference"], one["requests"], one["drifted"]) == (level.mean, 64, False)
        assert one["observed"] == pytest.approx(ratio(last, one["statistic"]))
        error = np.sqrt(level.error**2 + DEVIATIONS[one["statistic"]] ** 2 / 64)
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


def test_rotated_files_come_first_and_a_name_is_no_pattern(bundle, tmp_path):
    write(tmp_path, served(bundle, 64, 1.0))
    (tmp_path / "records").rename(tmp_path / "records.2")
    write(tmp_path, served(bundle, 40))
    (tmp_path / "records").rename(tmp_path / "records.1")
    (tmp_path / "records.lock").touch()
    assert drift(bundle, tmp_path, "--window", "32") == 0
    write(tmp_path, served(bundle, 40, 1.0))
    assert drift(bundle, tmp_path, "--window", "32") == DRIFT
    (tmp_path / "served1.1").write_text("{}\n")
    with pytest.raises(ValueError, match="no monitor wrote there"):
        read_records(tmp_path / "served[1]")
    (tmp_path / "served[1].1").write_text("{}\n{}\n")
    assert read_records(tmp_path / "served[1]") == ([], 2), "both damaged"
    for given in (["--window", "8"], ["--false-alarm", "0"]):
        assert given[0] in drift(bundle, tmp_path, *given)


def damaged(bundle):
    """Lines that no monitor wrote, and an empty one, which is none."""
    yield "[" * 100_000
    yield from ("", '{"bundle": "cut o', "3", "[]", '{"bundle": "x"}', "1" * 5000)
    (line,) = served(bundle, 1)
    good = json.loads(line)
    others = [{"setting": value} for value in ("\ud800", ["T=0"], None)]
    others += [{"bundle": {}}, {"emitted": "40"}, {"sketch": 3}, {"rounds": "ten"}, {"accepted": 10**400}]
    yield from (json.dumps(good | one) for one in others)


def test_what_is_not_this_bundles_is_left_out(bundle, tmp_path, capsys):
    others = [line.replace(bundle_hash(bundle), "0" * 64) for line in served(bundle, 64, 9.0)]
    write(tmp_path, served(bundle, 64), others, damaged(bundle))
    assert drift(bundle, tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["left_out"].values()) == [64, 14] and found["settings"]["T=0"]["requests"] == 64
    assert drift(bundle, tmp_path) == 0
    assert re.findall(r"^\d+", capsys.readouterr().out, flags=re.MULTILINE) == ["64", "14"]


def test_what_cannot_be_compared_ends_in_4(bundle, pair, tmp_path, capsys):
    write(tmp_path, served(bundle, LEAST - 1), served(bundle, 40, setting="T=0.6"))
    assert drift(bundle, tmp_path, "--json") == UNKNOWN
    found = json.loads(capsys.readouterr().out)
    assert found["comparisons"] == [] and len(found["notes"]) == 2
    assert {setting: one["requests"] for setting, one in found["settings"].items()} == {"T=0": 15, "T=0.6": 40}
    write(tmp_path, [line.replace('"rounds": ', '"rounds": 0, "was": ') for line in served(bundle, 20)])
    assert drift(bundle, tmp_path) == 0, "forecasts are compared without rounds"
    old = random_bundle(tmp_path / "old", pair)
    write(tmp_path, served(old, 64))
    capsys.readouterr()
    assert drift(old, tmp_path, "--json") == UNKNOWN
    assert read_reference(read_bundle(old).card)[1] in json.loads(capsys.readouterr().out)["notes"][0]


@pytest.mark.parametrize(
    ("drifts", "retrains", "ends"), [(0, 0, 0), (DRIFT, 0, 0), (DRIFT, 5, 5), (UNKNOWN, 0, 1), (1, 0, 1)]
)
def test_the_retraining_line_hides_no_failure(drifts, retrains, ends):
    (line,) = [line.strip() for line in pipelines.commands.drift.__doc__.splitlines() if "case $?" in line]
    assert line.split("; ", 1)[1] in (Path(__file__).parents[2] / "docs/drift.md").read_text()
    tools = f"draftwright() {{ return {drifts}; }}\ndvc() {{ echo $*; return {retrains}; }}\n"
    done = subprocess.run(["sh", "-c", tools + line], capture_output=True, text=True, check=False)
    retrained = ["repro -sf prompts@PAIR", "repro"][: 1 if retrains else 2]
    assert done.returncode == ends and done.stdout.splitlines() == (retrained if drifts == DRIFT else [])
