"""Champions in every kind of registry: history and alias, also where another champion came between or a call dies half-way."""

import json
import os
import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pipelines.gate.verdict import CHALLENGER, CHAMPION
from pipelines.registry.champions import EVENT, PROMOTED, Champions, Event, names_of
from pipelines.registry.tracking import new_client
from pipelines.registry.versions import BUNDLE_TAG, PAIR_TAG

NAME = "p-hrad"
PASSED = {"version": 3, "passed": True, "verdict": "passed", "checks": []}
REFUSED = {"version": 3, "passed": False, "verdict": "refused", "checks": []}
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
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        event = Event(PROMOTED, version, CONTENTS[version], at, "somebody", None, "passed")
        tag = f"{EVENT}{at}.00000000"
        self.champions.client.set_registered_model_tag(NAME, tag, json.dumps(asdict(event)))
        self.standing.append(version)
        self.champions.mend()

    @rule(record=st.sampled_from([*VERDICTS, REFUSED | {"version": 2}, {"passed": False, "checks": []}]))
    def keep(self, record):
        """Verdicts of another gate count for nothing."""
        self.champions.keep("1", record)
        self.kept += [record] if record.get("version") == 3 else []

    @invariant()
    def the_registry_is_the_stack(self):
        found, top = self.champions.champion(), self.standing[-1] if self.standing else None
        assert (found and (found.version, found.sha256)) == (top and (top, CONTENTS[top]))
        assert self.champions.follows() and (top is None or str(alias(self.champions)) == top)
        assert len(self.champions.history()) == self.events
        assert self.champions.verdicts("1") == self.kept and self.champions.challenger().version == "3"


def test_releases_are_a_stack_whatever_is_asked_in_which_order(template_db):
    Releases.template = template_db
    run_state_machine_as_test(Releases, settings=settings(max_examples=12, stateful_step_count=10, deadline=None))


def test_a_champion_that_came_between_is_met_right_before_the_alias_is_set(champions):
    """In every registry. Evidence over no champion; meanwhile another version was promoted. Tags of users are no events."""
    other = Champions(champions.client, NAME)
    other.promote("2", None, PASSED)
    for key in ("champion.note", "champion.2026", "verdict.note", "verdict.1"):
        champions.client.set_registered_model_tag(NAME, key, "the good one")
        champions.client.set_model_version_tag(NAME, "1", key, "the good one")
    with pytest.raises(ValueError, match="measured against no champion, and by now champion bbbbbbbbbbbb is"):
        champions.promote("1", None, PASSED)
    assert [event.version for event in champions.history()] == ["2"] and str(alias(champions)) == "2"
    champions.promote("1", "b" * 64, REFUSED, forced="an outage")
    assert champions.rollback().action == "rolled back" and str(alias(champions)) == "2"
    assert champions.history()[1].forced == "an outage" and champions.champion().version == "2"
    champions.keep("1", PASSED)
    assert champions.verdicts("1") == [PASSED]
    with pytest.raises(ValueError, match="nothing is registered as p-length"):
        Champions(champions.client, "p-length").champion()


def test_models_of_a_pair_are_found_page_by_page():
    class Page(list):
        token = None

    def search(filter_string, page_token):
        start = int(page_token or 0)
        numbers = range(start, start + 2)
        page = Page(SimpleNamespace(name=f"p-{n}", tags={PAIR_TAG: "p" if n % 2 else "q"}) for n in numbers)
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
