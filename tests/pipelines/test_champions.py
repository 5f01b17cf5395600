"""Champions in every kind of registry: history, alias and lock, also where two processes promote at once or one dies half-way."""

import json
import os
import re
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from pipelines.promotion.champions import BROKEN, EVENT, VERDICT_TAG, Champions, names_of
from pipelines.promotion.names import CHALLENGER, CHAMPION
from pipelines.registry import BUNDLE_TAG, PAIR_TAG
from pipelines.tracking import new_client

NAME = "p-hrad"
PASSED = {"version": 2, "passed": True, "verdict": "passed", "checks": []}
REFUSED = {"version": 2, "passed": False, "verdict": "refused", "checks": []}


@pytest.fixture
def champions(tracking_uri):
    """Three versions of contents a, b and c; the last is the challenger."""
    client = new_client(tracking_uri)
    client.create_registered_model(NAME)
    for content in "abc":
        client.create_model_version(NAME, f"s3://nowhere/{content}", tags={BUNDLE_TAG: content * 64})
    client.set_registered_model_alias(NAME, CHALLENGER, "3")
    return Champions(client, NAME)


def alias(champions):
    return champions.client.get_registered_model(NAME).aliases.get(CHAMPION)


def test_promote_and_roll_back_twice(champions):
    assert champions.champion() is None and champions.challenger().version == "3"
    for version, over in (("1", None), ("2", "a" * 64), ("3", "b" * 64)):
        champions.promote(version, over, PASSED)
        assert str(alias(champions)) == version == champions.champion().version
    assert champions.rollback().action == "rolled back" and str(alias(champions)) == "2"
    assert champions.rollback() and str(alias(champions)) == "1"
    with pytest.raises(ValueError, match="version 1 is the only champion there was"):
        champions.rollback()
    champions.promote("3", "a" * 64, PASSED)
    assert [(event.action, event.version) for event in champions.history()] == [
        *(("promoted", version) for version in "123"),
        ("rolled back", "3"),
        ("rolled back", "2"),
        ("promoted", "3"),
    ]
    assert str(alias(champions)) == "3"
    assert champions.rollback() and str(alias(champions)) == "1", (
        "back to what stood before, not to what was rolled back"
    )


def test_refusals(champions):
    with pytest.raises(ValueError, match=r"did not pass the gate \(refused\)"):
        champions.promote("1", None, REFUSED)
    forced = champions.promote("1", None, REFUSED, forced="an outage")
    assert forced.forced == "an outage" and forced.verdict == "refused" and champions.history()[0].forced == "an outage"
    with pytest.raises(ValueError, match="measured against no champion, and by now champion aaaaaaaaaaaa is"):
        champions.promote("2", None, PASSED)
    with pytest.raises(ValueError, match="measured against champion bbbbbbbbbbbb, and by now champion aaaaaaaaaaaa"):
        champions.promote("3", "b" * 64, PASSED)
    with pytest.raises(ValueError, match="is the champion already"):
        champions.promote("1", "a" * 64, PASSED)
    with pytest.raises(ValueError, match="version 9 does not exist"):
        champions.promote("9", "a" * 64, PASSED)
    assert len(champions.history()) == 1 and str(alias(champions)) == "1"
    with pytest.raises(ValueError, match="nothing is registered as p-length"):
        Champions(champions.client, "p-length").champion()


def test_a_call_that_died_between_history_and_alias_is_mended(champions):
    champions.promote("1", None, PASSED)
    event = champions.history()[0].__dict__ | {"number": 2, "version": "2", "sha256": "b" * 64}
    champions.client.set_registered_model_tag(NAME, f"{EVENT}000002", json.dumps(event))
    assert champions.champion().version == "2" and str(alias(champions)) == "1" and not champions.follows()
    for _ in range(2):
        champions.mend()
        assert str(alias(champions)) == "2" and champions.follows()


def test_a_lock_that_is_held_names_its_holder(champions):
    other = Champions(champions.client, NAME)
    refused = pytest.raises(ValueError, match=r"is being changed by .*process \d+\) since 20")
    with champions.lock(), refused, other.lock(seconds=0.3):
        raise AssertionError("two hold the lock")
    with other.lock(seconds=0.3):
        pass


def test_a_lock_released_while_it_is_refused_is_free(champions, monkeypatch):
    create, holder = champions.client.create_registered_model, champions.lock()

    def refused_late(name, tags):
        with pytest.raises(MlflowException, match="already exists"):
            create(name, tags=tags)
        holder.__exit__(None, None, None)
        monkeypatch.undo()
        champions.client.get_registered_model(name)  # MLflow asks who has the name, and fails on that

    holder.__enter__()
    monkeypatch.setattr(champions.client, "create_registered_model", refused_late)
    with Champions(champions.client, NAME).lock():
        assert champions.client.search_registered_models(f"name = '{NAME}.lock'")
    assert not champions.client.search_registered_models(f"name = '{NAME}.lock'")


def test_a_lock_is_broken_on_request_and_its_holder_writes_nothing_more(champions):
    champions.promote("1", None, PASSED)
    other = Champions(champions.client, NAME, break_lock=True)
    with pytest.raises(ValueError, match="was broken meanwhile"), champions.lock(), other.lock(seconds=0.3):
        champions._record("promoted", champions.challenger(), None)
    with pytest.raises(ValueError, match="say --break-lock"), champions.lock(), champions.lock(seconds=0.3):
        raise AssertionError("it is not broken without being asked to")
    with champions.lock(), pytest.raises(ValueError, match="say --break-lock"), other.lock(seconds=0.3):
        raise AssertionError("one request breaks one lock")
    assert [event.version for event in champions.history()] == ["1"]
    (broken,) = [tag for tag in champions.client.get_registered_model(NAME).tags.items() if tag[0].startswith(BROKEN)]
    assert len(re.findall(r"20\d\d-\d\d-\d\dT", broken[1])) == 2, "since when it was held, and when it was broken"
    assert broken[1].count(f"process {os.getpid()}") == 2
    assert not champions.client.search_registered_models(f"name = '{NAME}.lock'")


def test_a_holder_does_not_release_what_another_holds_by_now(champions):
    other = Champions(champions.client, NAME, break_lock=True)
    first = champions.lock()
    first.__enter__()
    with other.lock(seconds=0.3):
        first.__exit__(None, None, None)
        assert champions.client.search_registered_models(f"name = '{NAME}.lock'"), "the other's"


def test_verdicts_of_another_gate_count_for_nothing(champions):
    for record in (REFUSED | {"version": 1}, {"passed": False, "checks": []}, REFUSED):
        champions.keep("1", record)
    assert champions.verdicts("1") == [REFUSED]


def test_every_verdict_is_kept(champions):
    for record in (REFUSED, REFUSED, PASSED):
        champions.keep("1", record)
    champions.promote("1", None, PASSED)
    assert champions.verdicts("1") == [REFUSED, REFUSED, PASSED] and champions.verdicts("2") == []
    assert json.loads(champions.client.get_model_version(NAME, "1").tags[VERDICT_TAG]) == PASSED


def promote_in_process(uri, version, barrier, results):
    champions = Champions(new_client(uri), NAME)
    champions.champion()
    barrier.wait(60)
    try:
        champions.promote(version, None, PASSED)
        results.put((version, "promoted"))
    except ValueError as error:
        results.put((version, str(error)))


def test_of_two_promotions_at_once_one_fails_loudly(champions, tracking_uri, processes):
    barrier, results = processes.Barrier(2), processes.Queue()
    workers = [
        processes.Process(target=promote_in_process, args=(tracking_uri, version, barrier, results)) for version in "12"
    ]
    for worker in workers:
        worker.start()
    outcomes = dict(results.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join(60)
    (winner,) = [version for version, outcome in outcomes.items() if outcome == "promoted"]
    (loser,) = {"1", "2"} - {winner}
    assert {"1": "a" * 12, "2": "b" * 12}[winner] in outcomes[loser], "the refusal names the champion it met"
    assert [event.version for event in champions.history()] == [winner] and str(alias(champions)) == winner
    assert not champions.client.search_registered_models(f"name = '{NAME}.lock'")


def test_models_of_a_pair_are_found_page_by_page():
    class Page(list):
        token = None

    def version(number):
        return SimpleNamespace(name=f"p-{number}", tags={PAIR_TAG: "p" if number % 2 else "q"})

    def search(filter_string, page_token):
        start = int(page_token or 0)
        page = Page(version(number) for number in range(start, start + 2))
        page.token = str(start + 2) if start < 4 else None
        return page

    assert names_of(SimpleNamespace(search_model_versions=search), "p") == ["p-1", "p-3", "p-5"]
