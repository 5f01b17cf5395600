"""Champions in every kind of registry: history, alias and lock, also where two processes promote at once or one dies half-way."""

import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from mlflow.exceptions import MlflowException

from pipelines.gate.verdict import CHALLENGER, CHAMPION
from pipelines.registry.champions import BROKEN, EVENT, PROMOTED, Champions, Event, names_of
from pipelines.registry.tracking import new_client
from pipelines.registry.versions import BUNDLE_TAG, PAIR_TAG

NAME = "p-hrad"
PASSED = {"version": 2, "passed": True, "verdict": "passed", "checks": []}
REFUSED = {"version": 2, "passed": False, "verdict": "refused", "checks": []}
VERDICTS = (PASSED, REFUSED)
CONTENTS = {str(number): content * 64 for number, content in enumerate("abc", 1)}  # by version


def registered(uri):
    """Three versions of contents a, b and c; the last is the challenger."""
    client = new_client(uri)
    client.create_registered_model(NAME)
    for content in CONTENTS.values():
        client.create_model_version(NAME, f"s3://nowhere/{content[0]}", tags={BUNDLE_TAG: content})
    client.set_registered_model_alias(NAME, CHALLENGER, "3")
    return Champions(client, NAME)


@pytest.fixture
def champions(tracking_uri):
    return registered(tracking_uri)


def alias(champions):
    return champions.client.get_registered_model(NAME).aliases.get(CHAMPION)


versions = st.sampled_from([*CONTENTS, "9"])


class Releases(RuleBasedStateMachine):
    """A registry against a stack of versions: promotions go on top, rollbacks take off, and what is refused changes nothing."""

    template: Path  # an empty database

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory()
        self.champions = registered(f"sqlite:///{shutil.copy(self.template, Path(self.folder.name) / 'mlflow.db')}")
        self.standing, self.events, self.kept = [], 0, []

    def teardown(self):
        self.folder.cleanup()

    @rule(version=versions, over=st.sampled_from([..., None, *CONTENTS.values()]), verdict=st.sampled_from(VERDICTS))
    def promote(self, version, over, verdict, forced=None):
        """``over``: `...` stands for the champion there is."""
        known = CONTENTS[self.standing[-1]] if self.standing else None
        over = known if over is ... else over
        may = (verdict["passed"] or forced) and over == known and version in CONTENTS and CONTENTS[version] != known
        if not may:
            with pytest.raises(ValueError):
                self.champions.promote(version, over, verdict, forced=forced)
            return
        event = self.champions.promote(version, over, verdict, forced=forced)
        assert (event.version, event.verdict, event.forced) == (version, verdict["verdict"], forced)
        self.standing.append(version)
        self.events += 1

    @rule(version=versions)
    def force(self, version):
        self.promote(version, ..., REFUSED, forced="an outage")

    @rule()
    def roll_back(self):
        if len(self.standing) < 2:
            with pytest.raises(ValueError, match="has no earlier champion to go back to"):
                self.champions.rollback()
            return
        assert self.champions.rollback().version == self.standing.pop()
        self.events += 1

    @rule(version=st.sampled_from([*CONTENTS]))
    def die_between_history_and_alias(self, version):
        """And the next call mends the alias."""
        self.events += 1
        event = Event(self.events, PROMOTED, version, CONTENTS[version], "now", "somebody", None, "passed")
        tag = f"{EVENT}{self.events:06d}"
        self.champions.client.set_registered_model_tag(NAME, tag, json.dumps(asdict(event)))
        self.standing.append(version)
        self.champions.mend()

    @rule(record=st.sampled_from([*VERDICTS, REFUSED | {"version": 1}, {"passed": False, "checks": []}]))
    def keep(self, record):
        """Verdicts of another gate count for nothing."""
        self.champions.keep("1", record)
        self.kept += [record] if record.get("version") == 2 else []

    @invariant()
    def the_registry_is_the_stack(self):
        found, top = self.champions.champion(), self.standing[-1] if self.standing else None
        assert (found and (found.version, found.sha256)) == (top and (top, CONTENTS[top]))
        assert self.champions.follows() and (top is None or str(alias(self.champions)) == top)
        assert [event.number for event in self.champions.history()] == list(range(1, self.events + 1))
        assert self.champions.verdicts("1") == self.kept and self.champions.challenger().version == "3"
        assert not self.champions.client.search_registered_models(f"name = '{NAME}.lock'")


def test_releases_are_a_stack_whatever_is_asked_in_which_order(template_db):
    Releases.template = template_db
    run_state_machine_as_test(Releases, settings=settings(max_examples=12, stateful_step_count=10, deadline=None))


def test_promote_and_roll_back_in_every_registry(champions):
    champions.promote("1", None, PASSED)
    with pytest.raises(ValueError, match="measured against no champion, and by now champion aaaaaaaaaaaa is"):
        champions.promote("2", None, PASSED)
    champions.promote("2", "a" * 64, REFUSED, forced="an outage")
    assert champions.rollback().action == "rolled back" and str(alias(champions)) == "1"
    assert champions.history()[1].forced == "an outage" and champions.champion().version == "1"
    champions.keep("1", PASSED)
    assert champions.verdicts("1") == [PASSED]
    with pytest.raises(ValueError, match="nothing is registered as p-length"):
        Champions(champions.client, "p-length").champion()


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


@pytest.mark.parametrize("error", [KeyError, OSError])  # before Python 3.13 and from there on
def test_a_user_whom_nobody_knows_by_name_is_a_number(champions, monkeypatch, error):
    def unknown(uid):
        raise error(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert champions.promote("1", None, PASSED).by.startswith(f"{os.getuid()}@")
    second = Champions(champions.client, NAME).lock(seconds=0)
    with champions.lock(), pytest.raises(ValueError, match=f"changed by {os.getuid()}@"), second:
        pass
