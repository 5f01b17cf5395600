"""The commands of release: promote, refuse, force, roll back, status and history."""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from pipelines.cli import main
from pipelines.gate.evidence import other_code
from pipelines.gate.plan import Bounds, reserve_opens
from pipelines.gate.verdict import CHALLENGER, CHAMPION, VERDICT, fingerprint, judged
from pipelines.measuring.provenance import MEASURED_CODE, source_hash
from pipelines.outputs import write_json
from pipelines.registry.champions import Champions
from pipelines.registry.tracking import new_client
from pipelines.registry.versions import BUNDLE_TAG, PAIR_TAG, Registry
from pipelines.terminal import LINES, WIDTH
from tests.pipelines.hand_made_evidence import GOOD, gains

NAME = "p-hrad"
OF = ["--pair", "p", "--predictor", "hrad"]


@pytest.fixture
def released(workspace, monkeypatch):
    """A workspace whose registry has contents a, b and c as versions; its client."""
    write_bounds()
    write_json(Path("data/device.json"), {"slug": "toy-1c"})
    monkeypatch.setattr(Registry, "stored", lambda *_: nullcontext())  # its versions have no files
    client = new_client(workspace)
    register(client, NAME, "abc")
    return client


def write_bounds(**promotion):
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"promotion": promotion, "trial": {}}}}))


def register(client, name, contents, pair="p"):
    client.create_registered_model(name)
    for content in contents:
        client.create_model_version(name, f"s3://nowhere/{content}", tags={BUNDLE_TAG: content * 64, PAIR_TAG: pair})


def on(content, **changes):
    """Evidence on a version of that content."""
    return dataclasses.replace(GOOD, bundle_sha256=content * 64, **changes)


def challenge(client, content, **changes):
    """Make a version the challenger; the arguments by which it is promoted with evidence on it."""
    client.set_registered_model_alias(NAME, CHALLENGER, str("abc".index(content) + 1))
    write_json(Path("evidence.json"), dataclasses.asdict(on(content, **changes)))
    return "promote", "--evidence", "evidence.json"


@pytest.fixture
def command(capsys):
    """Run a command; what it prints."""

    def run(*arguments):
        capsys.readouterr()
        main([*arguments, *(OF[:2] if arguments[0] == "status" else OF)])
        return capsys.readouterr().out

    return run


@pytest.fixture
def recorded(command):
    """Run a command; what it prints with ``--json``."""
    return lambda *arguments: json.loads(command(*arguments, "--json"))


@pytest.fixture
def refused(command):
    """Run a command that ends in one line, which matches."""

    def run(message, *arguments):
        with pytest.raises(SystemExit, match=message) as refusal:
            command(*arguments)
        assert isinstance(refusal.value.code, str), "exit code 1"

    return run


def champion(client):
    """The version that is champion by history and alias."""
    champions = Champions(client, NAME)
    standing = champions.champion()
    assert champions.follows()
    return standing and standing.version


def over(content, values=None):
    """Gains over the champion of that content: the closest of those over other rivals."""
    known = (values or {"gains": GOOD.gains})["gains"]
    return {"champion": content * 64, "gains": known | {"champion": known["chain-4"]}, "reference": "champion"}


WORSE, OPEN = gains(0.0), gains(0.03, 0.02)  # refused, and inconclusive
MORE = {"reserve": True, "documents": (*GOOD.documents, "r0")}  # a trial with the reserve


def test_a_dry_run_changes_nothing_and_what_was_refused_stays_so(released, command, recorded, refused):
    """Promotion, force and rollback themselves are in `test_release`."""
    champions = Champions(released, NAME)
    promote = challenge(released, "a")
    assert recorded(*promote, "--dry-run")["verdict"] == "passed" and champion(released) is None
    out = command(*promote).splitlines()
    assert champion(released) == "1" and len(out) <= LINES and max(map(len, out)) <= WIDTH
    (kept,) = champions.verdicts("1")
    assert recorded(*promote) == kept, "it is the champion already"
    assert champions.verdicts("1") == [kept] and len(champions.history()) == 1

    promote = challenge(released, "b", **over("a", WORSE))
    refused(r"version 2 is refused: .*gain over chain-4: \+0\.0%", *promote)
    record = json.loads((Path("data") / "p" / "promotion" / "hrad-2" / VERDICT).read_text())
    (kept,) = champions.verdicts("2")
    assert record["verdict"] == kept["verdict"] == "refused" and kept["evidence_sha256"] == record["evidence_sha256"]
    status = recorded("status")[NAME]
    assert status["champion"] == {"version": "1", "sha256": "a" * 64}
    assert status["challenger"] == {"version": "2", "sha256": "b" * 64} and status["verdict"] == kept
    refused("would be refused", *promote, "--dry-run")
    tried = recorded(*promote, "--dry-run", "--force", "an outage")
    assert tried["verdict"] == "refused" and champion(released) == "1" and len(champions.verdicts("2")) == 1
    refused("version 2 was refused", "promote")


def test_after_an_inconclusive_trial_the_reserve_opens_once(released, command, recorded, refused):
    refused("version 1 is inconclusive: gain over chain-4", *challenge(released, "a", **OPEN))
    champions = Champions(released, NAME)
    found = recorded("status")[NAME]
    assert found["champion"] is champion(released) is None and found["verdict"] == champions.verdicts("1")[-1]
    assert [found["verdict"][name] for name in ("verdict", "reserve")] == ["inconclusive", False]
    assert reserve_opens(champions.verdicts("1"), NAME, "1")
    refused("tried on these documents already", *challenge(released, "a"))
    refused("version 1 is inconclusive", *challenge(released, "a", **MORE, **OPEN))
    refused("had both its trials", "promote")
    assert [one["verdict"] for one in champions.verdicts("1")] == ["inconclusive", "inconclusive"]


@pytest.fixture
def measuring(monkeypatch):
    """Let trials find these; of those that were measured, whether with the reserve."""

    def find(*found):
        taken, answers = [], iter(found)
        attempt = lambda args, predictor, bundles, reserve: taken.append(reserve) or next(answers)  # noqa: E731
        monkeypatch.setattr("pipelines.gate.trial.attempt", attempt)
        monkeypatch.setattr(Registry, "fetch", lambda *arguments: None)
        return taken

    return find


def test_a_dry_run_that_measures_is_a_trial(released, measuring, command, recorded, refused):
    """Repeated until it passes, every challenger would pass. A pass is acted on later, and not measured again."""
    released.set_registered_model_alias(NAME, CHALLENGER, "1")
    taken = measuring(on("a", **OPEN), on("a", **MORE))
    refused("would be inconclusive: .*the trial counts", "promote", "--dry-run")
    for _ in range(2):
        assert recorded("promote", "--dry-run")["passed"]
        assert taken == [one["reserve"] for one in Champions(released, NAME).verdicts("1")] == [False, True]
        assert champion(released) is None
    command("promote")
    assert champion(released) == "1" and taken == [False, True]


def test_a_lost_race_is_a_trial(released, monkeypatch, measuring, refused):
    """Another version became champion while this one was measured: its trial is kept, and evidence over that champion on the same
    documents is a second one."""
    released.set_registered_model_alias(NAME, CHALLENGER, "1")
    champions = Champions(released, NAME)
    taken = measuring(on("a"), on("a", **over("b")))
    keep = Champions.keep

    def raced(self, version, verdict):
        keep(self, version, verdict)
        champions.promote("2", None, {"passed": True, "verdict": "passed"})

    with monkeypatch.context() as patched:
        patched.setattr(Champions, "keep", raced)
        refused("measured against no champion, and by now champion bbbbbbbbbbbb", "promote")
    assert [one["verdict"] for one in champions.verdicts("1")] == ["passed"]
    refused("tried on these documents already", "promote")
    assert champion(released) == "2" and taken == [False, False]


@pytest.mark.parametrize("content", "ab")
def test_the_stage_s_evidence_is_the_first_trial(released, measuring, command, refused, content):
    """Of this very bundle, and without a champion; else it is measured."""
    tried = on("a", **OPEN)
    write_json(Path("data/p/trials/hrad/toy-1c") / VERDICT, judged(tried, Bounds()))
    taken = measuring(on("b"), on("a", **over("b")))
    released.set_registered_model_alias(NAME, CHALLENGER, str("ab".index(content) + 1))
    if content == "a":
        refused("version 1 is inconclusive", "promote")
        (kept,) = Champions(released, NAME).verdicts("1")
        assert kept["evidence_sha256"] == fingerprint(tried) and taken == [], "nothing was measured"
        assert reserve_opens([kept], NAME, "1")
        return
    command("promote")
    assert champion(released) == "2" and taken == [False]
    released.set_registered_model_alias(NAME, CHALLENGER, "1")
    command("promote")
    assert champion(released) == "1" and taken == [False, False], "it was not timed with the champion"


def test_bounds_are_those_of_the_trials_before(released, command, refused):
    promote = challenge(released, "a", **OPEN)
    refused("version 1 is inconclusive", *promote)
    champions = Champions(released, NAME)
    (kept,) = champions.verdicts("1")
    assert kept["bounds"]["promised"] == 0.05 and "evidence" not in kept
    write_bounds(promised=0.1)
    for arguments in (["promote"], promote):
        refused(r"promotion.promised was 0.05 at the last trial, and is 0.1 now", *arguments)
    assert len(champions.verdicts("1")) == 1
    command(*promote, "--force", "so be it")
    assert champion(released) == "1" and champions.history()[0].forced == "so be it"


def test_force_needs_a_reason_and_evidence_but_no_files_of_the_champion(
    released, monkeypatch, measuring, command, refused
):
    taken = measuring(on("b", **WORSE))
    refused("version 1 is refused", *challenge(released, "a", **WORSE))
    with pytest.raises(SystemExit) as blank:
        command("promote", "--force", "  ")
    assert blank.value.code == 2 and champion(released) is None
    command("promote", "--force", "an outage")
    (event,) = Champions(released, NAME).history()
    assert champion(released) == "1" and (event.verdict, event.forced) == ("refused", "an outage")
    assert taken == [], "the evidence is that of the last trial"
    released.set_registered_model_alias(NAME, CHALLENGER, "2")

    def fetch(registry, name, version, folder):
        if version == "1":
            raise ValueError("version 1 does not hold its bundle")

    monkeypatch.setattr(Registry, "fetch", fetch)
    refused("version 1 does not hold its bundle", "promote")
    assert champion(released) == "1"
    command("promote", "--force", "files lost")
    assert champion(released) == "2" and Champions(released, NAME).history()[1].forced == "files lost"


def test_other_code_is_a_warning(released, capsys):
    here = {"code_sha256": source_hash(MEASURED_CODE)}
    assert other_code(GOOD) is other_code(dataclasses.replace(GOOD, origin=here)) is None
    there = {"code_sha256": "0" * 64}
    main([*challenge(released, "a", origin=there), *OF])
    said = capsys.readouterr().err
    assert "0" * 12 in said and here["code_sha256"][:12] in said and champion(released) == "1"


def test_evidence_must_be_on_the_challenger_and_over_the_champion(released, command, refused):
    promote = challenge(released, "a")
    released.set_registered_model_alias(NAME, CHALLENGER, "2")
    refused("on content aaaaaaaaaaaa, and the challenger, version 2, is bbbbbbbbbbbb", *promote)
    command(*challenge(released, "a"))
    for options in ([], ["--force", "an outage"]):
        refused("compares with no champion, and the champion is another", *challenge(released, "b"), *options)
    assert Champions(released, NAME).verdicts("2") == [] and not Path("data/p/promotion/hrad-2").exists()


def test_status_is_of_one_pair_and_changes_nothing(released, command, recorded):
    register(released, "p-big-hrad", "d", "p-big")
    register(released, "p-lookahead", "d")
    command(*challenge(released, "a"))
    released.set_registered_model_alias(NAME, CHAMPION, "3")
    assert [line.split(":")[0] for line in command("status").splitlines()] == [NAME, "p-lookahead"]
    assert str(released.get_registered_model(NAME).aliases[CHAMPION]) == "3"
    record = recorded("status")[NAME]
    assert record["champion"] == {"version": "1", "sha256": "a" * 64} and not record["alias_follows"]
