"""Records of requests: what was decoded, by whom; rotated, from several processes, and never in a request's way."""

import json
import multiprocessing
import os
import warnings
from types import SimpleNamespace

import pytest

from predictors.bundle import bundle_hash, read_bundle
from predictors.controllers import learned_controller
from predictors.monitoring import RequestCounts
from predictors.network import SKETCH
from predictors.rounds import RoundRecord
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.monitor import Monitor
from tests.bundles import random_bundle, stop_bundle
from tests.runtime.test_bundle_contract import with_controller
from tests.toys import near, tiny_llama

PROMPT = [3, 1, 4, 1, 5]
BUDGET = 40


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), near(tiny_llama(seed=0), 0.1))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def branching(card):
    card["decoder"] = {"method": "branch_parallel", "gamma": 3, "k_max": 2, "overlap": "none"}


BUNDLES = {
    "hrad": lambda folder, pair: random_bundle(folder, pair, gamma=3),
    "length": lambda folder, pair: random_bundle(folder, pair, "paper", gamma=3, kind="length"),
    "branches": lambda folder, pair: random_bundle(folder, pair, gamma=3, change=branching),
    "before": stop_bundle,
    "behind": lambda folder, pair: stop_bundle(folder, pair, "specdecpp"),
}


@pytest.mark.parametrize("name", BUNDLES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_record_is_what_the_rounds_were(pair, tmp_path, name, temperature):
    folder = BUNDLES[name](tmp_path / "bundle", pair)
    decoder, depth = load_decoder(folder, pair, monitor=tmp_path / "records"), 3
    options = {"max_new_tokens": BUDGET, "temperature": temperature}
    out = decoder.generate(PROMPT, randomness=Randomness(0), **options)
    same = load_decoder(folder, pair).generate(PROMPT, randomness=Randomness(0), **options)
    assert same.tokens == out.tokens
    (record,) = lines(tmp_path / "records")
    assert (record["bundle"], record["route"]) == (bundle_hash(folder), None)
    assert (record["setting"], record["prompt_tokens"], record["emitted"]) == (f"T={temperature:g}", 5, BUDGET)
    emitted, whole = 1, []
    for one in out.rounds[1:]:
        if BUDGET - emitted > depth:
            whole.append(one)
        emitted += one.emitted
    assert (record["rounds"], record["accepted"]) == (len(whole), sum(one.accepted for one in whole))
    said = [(one, said) for one in whole for said in one.forecasts]
    tested = [(one, said) for one, said in said if said.place < one.submitted and said.place <= one.accepted]
    assert record["questions"] == len(said) > 3 and record["tested"] == len(tested) > 3
    assert record["outcomes"] == sum(one.accepted > said.place for one, said in tested)
    assert record["probability"] == pytest.approx(sum(said.probability for _, said in tested))
    assert record["distance"] == pytest.approx(sum(forecast.distance for _, forecast in said))
    coordinates = zip(*(forecast.sketch for _, forecast in said), strict=True)
    assert record["sketch"] == pytest.approx([sum(values) for values in coordinates])
    assert 0 < record["outcomes"] < len(tested) or name != "before"


def test_a_head_forecasts_that_something_is_accepted(pair, tmp_path):
    folder = random_bundle(tmp_path / "hrad", pair, "paper", gamma=3)
    controller, seen = learned_controller(read_bundle(folder)), []
    decoder = load_decoder(folder, pair)
    for step in decoder.stream(PROMPT, max_new_tokens=20, randomness=Randomness(0), observe=True):
        if step.evidence is not None:
            probabilities, distance, sketch = controller.predict(step.evidence.root, None)
            (said,) = step.record.forecasts
            assert said[:1] + said[2:] == (0, distance, sketch) and len(sketch) == SKETCH
            probability = said.probability
            assert probability == pytest.approx(1 - float(probabilities[0]), abs=1e-6)
            seen.append(probability)
    assert len(seen) > 3


def test_trees_and_rules_without_a_model_forecast_nothing(pair, tmp_path):
    folder = stop_bundle(tmp_path / "stop", pair)
    fork = {"method": "speculative", "drafter": {"kind": "fork", "width": 2, "depth": 3}, "verifier": "nss"}
    for config in (fork | {"controller": {"kind": "early_stop", "bundle": str(folder)}}, {"method": "speculative"}):
        decoder = build_decoder(pair, config)
        decoder.monitor = Monitor(tmp_path / "records", "none")
        assert any(one.accepted for one in decoder.generate(PROMPT, max_new_tokens=20).rounds)
    assert [record["questions"] for record in lines(tmp_path / "records")] == [0, 0]
    assert all(record["rounds"] and record["accepted"] for record in lines(tmp_path / "records"))


def test_a_routed_request_says_which_route_it_took(pair, tmp_path):
    folder = with_controller(tmp_path, pair)
    decoder = load_decoder(folder, pair, monitor=tmp_path / "records")
    for temperature in (0.0, 0.9):
        decoder.generate(PROMPT, max_new_tokens=12, temperature=temperature, randomness=Randomness(0))
    records = lines(tmp_path / "records")
    assert {record["bundle"] for record in records} == {bundle_hash(folder)}
    assert [(record["setting"], record["route"]) for record in records] == [("T=0", "T=0"), ("T=0.9", "T=1")]
    assert records[0]["questions"] > 0 == records[1]["questions"]


def test_a_request_that_is_given_up_is_recorded(pair, tmp_path):
    decoder = load_decoder(random_bundle(tmp_path / "b", pair), pair, monitor=tmp_path / "records")
    steps = decoder.stream(PROMPT, max_new_tokens=BUDGET, randomness=Randomness(0))
    emitted = sum(len(next(steps).tokens) for _ in range(3))
    assert not (tmp_path / "records").exists()
    steps.close()
    (record,) = lines(tmp_path / "records")
    assert record["emitted"] == emitted and record["rounds"] == 2


@pytest.fixture
def unrecorded(pair, tmp_path):
    """A bundle that is `served` with its records at a path, and gives the text that it gives without any."""
    folder = random_bundle(tmp_path / "b", pair)
    options = {"max_new_tokens": 12, "randomness": Randomness(0)}
    expected = load_decoder(folder, pair).generate(PROMPT, **options).tokens

    def served(path, bundle="x"):
        decoder = load_decoder(folder, pair, monitor=path)
        decoder.monitor.bundle = bundle
        for words in (r"decoded, but not recorded", None):  # one warning, then none
            with pytest.warns(UserWarning, match=words) if words else warnings.catch_warnings(action="error"):
                assert decoder.generate(PROMPT, **options).tokens == expected

    return served


def test_what_cannot_be_written_is_lost_with_one_warning(unrecorded, tmp_path):
    unrecorded(tmp_path / "nowhere" / "records")
    unrecorded(tmp_path / "records", bundle={"no", "JSON"})


def test_a_full_disk_costs_records_and_no_text(unrecorded):
    """``/dev/full`` refuses every write as a full disk does."""
    unrecorded("/dev/full")


def test_a_warning_that_is_made_an_error_fails_no_request(pair, tmp_path):
    decoder = load_decoder(random_bundle(tmp_path / "b", pair), pair, monitor=tmp_path / "nowhere" / "records")
    with warnings.catch_warnings(action="error"):
        assert len(decoder.generate(PROMPT, max_new_tokens=12, randomness=Randomness(0)).tokens) == 12


def test_a_request_that_is_given_up_closes_what_decodes(tmp_path):
    ends = []

    def steps():
        try:
            yield SimpleNamespace(record=RoundRecord(drafted=1, accepted=1, emitted=2))
        finally:
            ends.append("closed")

    watched = Monitor(tmp_path / "records", "none").watched(held := steps(), Asked(), 2)
    next(watched)
    with pytest.raises(KeyError):
        watched.throw(KeyError("of the consumer"))
    assert ends == ["closed"] and next(held, None) is None and len(lines(tmp_path / "records")) == 1


def test_a_line_that_is_cut_off_damages_no_other(tmp_path, monkeypatch):
    path, real = tmp_path / "records", os.write
    write(Monitor(path, "first"), 1)
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, line: real(descriptor, line[:40]))
        with pytest.warns(UserWarning, match="took a part of a line only"):
            write(Monitor(path, "cut"), 1)
    write(Monitor(path, "last"), 2)
    first, cut, *last = path.read_text().splitlines()
    assert len(cut) == 40 and json.loads(first)["bundle"] == "first"
    assert [(json.loads(line)["bundle"], json.loads(line)["emitted"]) for line in last] == [("last", 0), ("last", 1)]


def test_what_serves_something_else_is_refused(pair, tmp_path):
    folder = random_bundle(tmp_path / "b", pair)
    with pytest.raises(ValueError, match="reprice=True serves something else"):
        load_decoder(folder, pair, latency=tmp_path / "profile.json", reprice=True, monitor=tmp_path / "records")
    with pytest.raises(ValueError, match=r"changes \['verifier'\] serve something else"):
        load_decoder(folder, pair, {"verifier": "nss"}, monitor=tmp_path / "records")
    with pytest.raises(ValueError, match="max_bytes and keep"):
        Monitor(tmp_path / "records", "none", keep=0)


class Asked:
    """A request as far as a monitor reads it."""

    max_new_tokens, prompt = 8, (1, 2)

    class sampling:  # noqa: N801
        name = "T=0"


def write(monitor, count):
    for emitted in range(count):
        monitor._write(Asked(), RequestCounts(8, 2, emitted=emitted))


def test_files_rotate_and_the_oldest_goes(tmp_path):
    path = tmp_path / "records"
    write(Monitor(path, "none", max_bytes=1000, keep=2), 41)
    assert {file.name for file in tmp_path.iterdir()} == {"records", "records.1", "records.2"}
    written = [record["emitted"] for age in (".2", ".1", "") for record in lines(tmp_path / f"records{age}")]
    assert written == list(range(41 - len(written), 41)) and 8 < len(written) < 20
    assert all(file.stat().st_size < 1400 for file in tmp_path.iterdir())


def test_a_lock_that_nobody_holds_any_more_is_broken(tmp_path):
    path, lock = tmp_path / "records", tmp_path / "records.lock"
    lock.touch()
    write(Monitor(path, "none", max_bytes=500), 20)
    assert not (tmp_path / "records.1").exists(), "somebody else is rotating"
    os.utime(lock, (0, 0))
    write(Monitor(path, "none", max_bytes=500), 3)
    assert (tmp_path / "records.1").exists() and not lock.exists()


def test_a_lock_from_before_the_clock_was_set_back_is_broken(tmp_path):
    path, lock = tmp_path / "records", tmp_path / "records.lock"
    lock.touch()
    os.utime(lock, (2e10, 2e10))
    write(Monitor(path, "none", max_bytes=500), 23)
    assert (tmp_path / "records.1").exists() and not lock.exists()


def test_several_processes_write_to_one_file(tmp_path):
    path, context = tmp_path / "records", multiprocessing.get_context("fork")
    monitors = [Monitor(path, str(number), max_bytes=20_000, keep=100) for number in range(4)]
    workers = [context.Process(target=write, args=(monitor, 200)) for monitor in monitors]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    records = [record for file in tmp_path.glob("records*") for record in lines(file)]
    assert len(list(tmp_path.glob("records.*"))) > 3
    for monitor in monitors:
        assert sorted(one["emitted"] for one in records if one["bundle"] == monitor.bundle) == list(range(200))
