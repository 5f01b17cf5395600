"""The commands of release: promote, refuse, force, roll back, status and history."""

import dataclasses
import json
import re
import shutil
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
from pipelines.registry.champions import VERDICT_TAG, Champions
from pipelines.registry.tracking import new_client
from pipelines.registry.versions import BUNDLE_TAG, PAIR_TAG, Registry
from pipelines.terminal import LINES, WIDTH
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.pipelines.hand_made_evidence import GOOD, gains
from tests.pipelines.toy_bench import toy_bench
from tests.toys import tiny_llama

NAME = "p-hrad"
OF = ["--pair", "p", "--predictor", "hrad"]


@pytest.fixture
def released(tmp_path, monkeypatch, template_db):
    """A workspace whose registry has contents a, b and c as versions; `challenge(client, content, …)` writes evidence on one."""
    tracking_uri = f"sqlite:///{shutil.copy(template_db, tmp_path / 'mlflow.db')}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"promotion": {}, "trial": {}}}}))
    write_json(tmp_path / "data" / "device.json", {"slug": "toy-1c"})
    monkeypatch.setattr(Registry, "stored", lambda *_: nullcontext())  # its versions have no files
    client = new_client(tracking_uri)
    client.create_registered_model(NAME)
    for content in "abc":
        client.create_model_version(NAME, f"s3://nowhere/{content}", tags={BUNDLE_TAG: content * 64, PAIR_TAG: "p"})
    return client


def challenge(client, content, **changes):
    """Make a version the challenger; the file of evidence on it."""
    client.set_registered_model_alias(NAME, CHALLENGER, str("abc".index(content) + 1))
    made = dataclasses.replace(GOOD, bundle_sha256=content * 64, **changes)
    write_json(Path("evidence.json"), dataclasses.asdict(made))
    return "evidence.json"


def command(capsys, *arguments):
    capsys.readouterr()
    main([*arguments, *(OF[:2] if arguments[0] == "status" else OF)])
    return capsys.readouterr().out


def recorded(capsys, *arguments):
    """What a command prints with ``--json``."""
    return json.loads(command(capsys, *arguments, "--json"))


def champion(client):
    """The version that is champion by history and alias."""
    champions = Champions(client, NAME)
    standing = champions.champion()
    assert champions.follows()
    return standing and standing.version


WORSE, OPEN = gains(0.0), gains(0.03, 0.02)  # refused, and inconclusive


def test_promote_refuse_force_and_roll_back(released, capsys):
    champions = Champions(released, NAME)
    assert recorded(capsys, "promote", "--evidence", challenge(released, "a"), "--dry-run")["verdict"] == "passed"
    assert champion(released) is None
    out = command(capsys, "promote", "--evidence", challenge(released, "a")).splitlines()
    assert champion(released) == "1" and len(out) <= LINES and max(map(len, out)) <= WIDTH
    (kept,) = champions.verdicts("1")
    assert recorded(capsys, "promote", "--evidence", challenge(released, "a")) == kept, "it is the champion already"
    assert champions.verdicts("1") == [kept] and len(champions.history()) == 1

    file = challenge(released, "b", champion="a" * 64, **over_champion(WORSE))
    with pytest.raises(SystemExit, match=r"version 2 is refused: .*gain over chain-4: \+0\.0%"):
        command(capsys, "promote", "--evidence", file)
    record = json.loads((Path("data") / "p" / "promotion" / "hrad-2" / VERDICT).read_text())
    kept = json.loads(released.get_model_version(NAME, "2").tags[VERDICT_TAG])
    assert record["verdict"] == kept["verdict"] == "refused" and kept["evidence_sha256"] == record["evidence_sha256"]
    status = recorded(capsys, "status")[NAME]
    assert status["champion"] == {"version": "1", "sha256": "a" * 64}
    assert status["challenger"] == {"version": "2", "sha256": "b" * 64} and status["verdict"] == kept
    with pytest.raises(SystemExit, match=r"dry run: would be refused: .*nothing was changed") as refusal:
        command(capsys, "promote", "--dry-run", "--evidence", file)
    assert isinstance(refusal.value.code, str), "exit code 1"
    tried = recorded(capsys, "promote", "--dry-run", "--force", "an outage", "--evidence", file)
    assert tried["verdict"] == "refused" and champion(released) == "1" and len(champions.verdicts("2")) == 1
    with pytest.raises(SystemExit, match="version 2 was refused"):
        command(capsys, "promote")

    command(capsys, "promote", "--force", "an outage", "--evidence", file)
    better = challenge(released, "c", champion="b" * 64, **over_champion({"gains": GOOD.gains}))
    command(capsys, "promote", "--evidence", better)
    assert champion(released) == "3"
    for version in "21":
        command(capsys, "rollback")
        assert champion(released) == version
    with pytest.raises(SystemExit, match="has no earlier champion to go back to"):
        command(capsys, "rollback")
    lines = command(capsys, "history").splitlines()
    assert [line.split()[2:4] for line in lines] == [["version", number] for number in "12332"]
    assert lines[1].endswith(", gate: refused, forced: an outage")


def test_a_reason_to_force_is_no_blank(capsys):
    with pytest.raises(SystemExit) as blank:
        command(capsys, "promote", "--force", "  ")
    assert blank.value.code == 2 and "say why" in capsys.readouterr().err


def over_champion(values):
    """The same gains, the closest of them over the champion, too."""
    return {"gains": values["gains"] | {"champion": values["gains"]["chain-4"]}, "reference": "champion"}


MORE = {"reserve": True, "documents": (*GOOD.documents, "r0")}  # a trial with the reserve


def test_after_an_inconclusive_trial_the_reserve_opens_once(released, capsys):
    with pytest.raises(SystemExit, match="version 1 is inconclusive: gain over chain-4"):
        command(capsys, "promote", "--evidence", challenge(released, "a", **OPEN))
    champions = Champions(released, NAME)
    found = recorded(capsys, "status")[NAME]
    assert found["champion"] is champion(released) is None and found["verdict"] == champions.verdicts("1")[-1]
    assert [found["verdict"][name] for name in ("verdict", "reserve")] == ["inconclusive", False]
    assert reserve_opens(champions.verdicts("1"), NAME, "1")
    with pytest.raises(SystemExit, match="tried on these documents already"):
        command(capsys, "promote", "--evidence", challenge(released, "a"))
    with pytest.raises(SystemExit, match="version 1 is inconclusive"):
        command(capsys, "promote", "--evidence", challenge(released, "a", **MORE, **OPEN))
    with pytest.raises(SystemExit, match="had both its trials"):
        command(capsys, "promote")
    assert [one["verdict"] for one in champions.verdicts("1")] == ["inconclusive", "inconclusive"]


def on(content, **changes):
    """Evidence on a version of that content."""
    return dataclasses.replace(GOOD, bundle_sha256=content * 64, **changes)


def measuring(monkeypatch, *found):
    """Let trials find these; of those that were measured, whether with the reserve."""
    taken, answers = [], iter(found)

    def attempt(args, predictor, bundles, reserve):
        taken.append(reserve)
        return next(answers)

    monkeypatch.setattr("pipelines.gate.trial.attempt", attempt)
    monkeypatch.setattr("pipelines.registry.versions.Registry.fetch", lambda *arguments: None)
    return taken


def test_a_dry_run_that_measures_is_a_trial(released, monkeypatch, capsys):
    """Repeated until it passes, every challenger would pass. A pass is acted on later, and not measured again."""
    released.set_registered_model_alias(NAME, CHALLENGER, "1")
    taken = measuring(monkeypatch, on("a", **OPEN), on("a", **MORE))
    refused = "dry run: would be inconclusive: .*the trial counts, nothing else was changed"
    with pytest.raises(SystemExit, match=refused):
        command(capsys, "promote", "--dry-run")
    champions = Champions(released, NAME)
    for _ in range(2):
        assert recorded(capsys, "promote", "--dry-run")["passed"]
        assert taken == [one["reserve"] for one in champions.verdicts("1")] == [False, True]
        assert champion(released) is None
    command(capsys, "promote")
    assert champion(released) == "1" and taken == [False, True]


def test_a_lost_race_is_a_trial(released, monkeypatch, capsys):
    """Another version became champion while this one was measured: its trial is kept, and evidence over that champion on the same
    documents is a second one."""
    released.set_registered_model_alias(NAME, CHALLENGER, "1")
    champions = Champions(released, NAME)
    over = over_champion({"gains": GOOD.gains})
    taken = measuring(monkeypatch, on("a"), on("a", champion="b" * 64, **over))
    keep = Champions.keep

    def raced(self, version, verdict):
        keep(self, version, verdict)
        champions.promote("2", None, {"passed": True, "verdict": "passed"})

    with monkeypatch.context() as patched:
        patched.setattr(Champions, "keep", raced)
        with pytest.raises(SystemExit, match="measured against no champion, and by now champion bbbbbbbbbbbb"):
            command(capsys, "promote")
    assert [one["verdict"] for one in champions.verdicts("1")] == ["passed"]
    with pytest.raises(SystemExit, match="tried on these documents already"):
        command(capsys, "promote")
    assert champion(released) == "2" and taken == [False, False]


def test_the_stage_s_evidence_is_the_first_trial(released, monkeypatch, capsys):
    """Of this very bundle, and without a champion; else it is measured."""
    tried = on("a", **OPEN)
    write_json(Path("data/p/trials/hrad/toy-1c") / VERDICT, judged(tried, Bounds()))
    taken = measuring(monkeypatch, on("b"), on("a", champion="b" * 64, **over_champion({"gains": GOOD.gains})))
    champions = Champions(released, NAME)
    released.set_registered_model_alias(NAME, CHALLENGER, "2")
    command(capsys, "promote")
    assert champion(released) == "2" and taken == [False]
    released.set_registered_model_alias(NAME, CHALLENGER, "1")
    command(capsys, "promote")
    assert champion(released) == "1" and taken == [False, False], "it was not timed with the champion"

    released.delete_registered_model(NAME)
    released.create_registered_model(NAME)
    for content in "ab":
        released.create_model_version(NAME, f"s3://nowhere/{content}", tags={BUNDLE_TAG: content * 64, PAIR_TAG: "p"})
    released.set_registered_model_alias(NAME, CHALLENGER, "1")
    with pytest.raises(SystemExit, match="version 1 is inconclusive"):
        command(capsys, "promote")
    (kept,) = champions.verdicts("1")
    assert kept["evidence_sha256"] == fingerprint(tried) and len(taken) == 2, "nothing was measured"
    assert reserve_opens([kept], NAME, "1")


def test_bounds_are_those_of_the_trials_before(released, capsys):
    file = challenge(released, "a", **OPEN)
    with pytest.raises(SystemExit, match="version 1 is inconclusive"):
        command(capsys, "promote", "--evidence", file)
    (kept,) = Champions(released, NAME).verdicts("1")
    assert kept["bounds"]["promised"] == 0.05 and "evidence" not in kept
    parameters = {"promotion": {"promised": 0.1}, "trial": {}}
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": parameters}}))
    for options in ([], ["--evidence", file]):
        with pytest.raises(
            SystemExit, match=r"promotion.promised was 0.05 at the last trial, and is 0.1 now: .*--force"
        ):
            command(capsys, "promote", *options)
    assert len(Champions(released, NAME).verdicts("1")) == 1
    command(capsys, "promote", "--force", "so be it", "--evidence", file)
    assert champion(released) == "1" and Champions(released, NAME).history()[0].forced == "so be it"


def test_force_promotes_by_the_evidence_of_the_last_trial(released, monkeypatch, capsys):
    taken = measuring(monkeypatch)
    with pytest.raises(SystemExit, match="version 1 is refused"):
        command(capsys, "promote", "--evidence", challenge(released, "a", **WORSE))
    command(capsys, "promote", "--force", "an outage")
    (event,) = Champions(released, NAME).history()
    assert champion(released) == "1" and (event.verdict, event.forced) == ("refused", "an outage") and taken == []


def test_force_needs_no_files_of_the_champion(released, monkeypatch, capsys):
    command(capsys, "promote", "--evidence", challenge(released, "a"))
    released.set_registered_model_alias(NAME, CHALLENGER, "2")
    measuring(monkeypatch, on("b", **WORSE))

    def fetch(registry, name, version, folder):
        if version == "1":
            raise ValueError("version 1 does not hold its bundle")

    monkeypatch.setattr(Registry, "fetch", fetch)
    with pytest.raises(SystemExit, match="version 1 does not hold its bundle"):
        command(capsys, "promote")
    assert champion(released) == "1"
    command(capsys, "promote", "--force", "files lost")
    assert champion(released) == "2" and Champions(released, NAME).history()[1].forced == "files lost"


def test_other_code_is_a_warning(released, capsys):
    here = {"code_sha256": source_hash(MEASURED_CODE)}
    assert other_code(GOOD) is other_code(dataclasses.replace(GOOD, origin=here)) is None
    there = {"code_sha256": "0" * 64}
    warning = other_code(dataclasses.replace(GOOD, origin=there))
    assert re.findall(r"\((\w{12})\)", warning) == ["0" * 12, here["code_sha256"][:12]]
    main(["promote", *OF, "--evidence", challenge(released, "a", origin=there)])
    assert warning in capsys.readouterr().err and champion(released) == "1"


def test_evidence_must_be_on_the_challenger_and_over_the_champion(released, capsys):
    file = challenge(released, "a")
    released.set_registered_model_alias(NAME, CHALLENGER, "2")
    with pytest.raises(SystemExit, match="on content aaaaaaaaaaaa, and the challenger, version 2, is bbbbbbbbbbbb"):
        command(capsys, "promote", "--evidence", file)
    command(capsys, "promote", "--evidence", challenge(released, "a"))
    for options in ([], ["--force", "an outage"]):
        with pytest.raises(SystemExit, match="compares with no champion, and the champion is another"):
            command(capsys, "promote", *options, "--evidence", challenge(released, "b"))
    assert Champions(released, NAME).verdicts("2") == [] and not Path("data/p/promotion/hrad-2").exists()
    with pytest.raises(SystemExit, match="holds no evidence"):
        command(capsys, "promote", "--evidence", "nowhere.json")
    with pytest.raises(SystemExit, match="nothing of pair q is registered"):
        main(["status", "--pair", "q"])


def test_status_is_of_one_pair_and_changes_nothing(released, capsys):
    for name, pair in (("p-big-hrad", "p-big"), ("p-lookahead", "p")):
        released.create_registered_model(name)
        released.create_model_version(name, "s3://nowhere/d", tags={BUNDLE_TAG: "d" * 64, PAIR_TAG: pair})
    command(capsys, "promote", "--evidence", challenge(released, "a"))
    released.set_registered_model_alias(NAME, CHAMPION, "3")
    said = command(capsys, "status").splitlines()
    assert [line.split(":")[0] for line in said] == [NAME, "p-lookahead"] and max(map(len, said)) <= WIDTH
    assert str(released.get_registered_model(NAME).aliases[CHAMPION]) == "3"
    record = recorded(capsys, "status")[NAME]
    assert record["champion"] == {"version": "1", "sha256": "a" * 64} and not record["alias_follows"]


def of_a_newer_kind(card):
    card["kind"] = "prophet"


@pytest.mark.parametrize(
    ("seed", "change", "problem"),
    [(5, None, "does not belong here: target.weights"), (0, of_a_newer_kind, "unknown controller kind 'prophet'")],
)
def test_a_bundle_that_does_not_serve_the_pair_is_refused_by_contract(
    tmp_path, template_db, monkeypatch, capsys, seed, change, problem
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(template_db, tmp_path / 'mlflow.db')}")
    toy_bench(tmp_path / "data" / "p", "promotion", {})
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"promotion": {}, "trial": {}}}}))
    Path("data/p/device.json").rename("data/device.json")
    pair = ModelPair(tiny_llama(seed=seed), tiny_llama(seed=1, layers=1))
    random_bundle(Path("data/p/bundles/hrad"), pair, change=change)
    main(["register"])
    with pytest.raises(SystemExit, match=f"version 1 is refused: contract: .*{problem}"):
        command(capsys, "promote", "--force", "an outage")
    record = json.loads(Path("data/p/promotion/hrad-1/verdict.json").read_text())
    assert problem in record["evidence"]["problem"] and not record["evidence"]["documents"]
    champions = Champions(new_client(f"sqlite:///{tmp_path}/mlflow.db"), NAME)
    (kept,) = champions.verdicts("1")
    assert kept["verdict"] == "refused" and kept["checks"] == record["checks"] and kept["smallest_gain"] is None
    assert champions.champion() is None and champions.history() == []
