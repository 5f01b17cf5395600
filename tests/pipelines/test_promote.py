"""The commands of release: promote, refuse, force, roll back, status and history, against every kind of registry."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pipelines import trial as trial_stage
from pipelines.cli import main
from pipelines.outputs import write_json
from pipelines.promote import next_look, read_evidence, require_new
from pipelines.promotion.bounds import Bounds
from pipelines.promotion.champions import CHAMPION, VERDICT_TAG, Champions, names_of
from pipelines.promotion.evidence import VERSION
from pipelines.promotion.names import VERDICT
from pipelines.registry import BUNDLE_TAG, CHALLENGER, PAIR_TAG
from pipelines.tracking import new_client
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.pipelines.test_gate import GOOD, gains
from tests.pipelines.toy_bench import toy_bench
from tests.toys import tiny_llama

NAME = "p-hrad"


@pytest.fixture
def released(tmp_path, monkeypatch, tracking_uri):
    """A workspace whose registry has contents a, b and c as versions; `challenge(client, content, …)` writes evidence on one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"promotion": {}}}}))
    write_json(tmp_path / "data" / "device.json", {"slug": "toy-1c"})
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
    main([*arguments, "--pair", "p", *([] if arguments[0] == "status" else ["--predictor", "hrad"])])
    return capsys.readouterr().out


WORSE, OPEN = gains(0.0), gains(0.03, 0.02)  # refused, and inconclusive


def test_promote_refuse_force_and_roll_back(released, capsys):
    out = command(capsys, "promote", "--evidence", challenge(released, "a"))
    assert "p-hrad version 1 is champion" in out and json.loads(out[: out.rindex("}") + 1])["verdict"] == "passed"
    assert "is the champion already" in command(capsys, "promote", "--evidence", challenge(released, "a"))

    worse = {"champion": "a" * 64} | over_champion(WORSE)
    with pytest.raises(SystemExit, match=r"version 2 is refused: .*gain over champion: \+0\.0%"):
        command(capsys, "promote", "--evidence", challenge(released, "b", **worse))
    record = json.loads((Path("data") / "p" / "promotion" / "hrad-2" / VERDICT).read_text())
    assert (
        record["verdict"] == "refused"
        and Bounds(**record["bounds"] | {"looks": tuple(record["bounds"]["looks"])}) == Bounds()
    )
    kept = json.loads(released.get_model_version(NAME, "2").tags[VERDICT_TAG])
    assert kept["verdict"] == "refused" and kept["evidence_sha256"] == record["evidence_sha256"]
    status = command(capsys, "status")
    assert "champion version 1 (aaaaaaaaaaaa), challenger version 2 (bbbbbbbbbbbb), refused at look 1 of 3" in status

    again = challenge(released, "b", **worse)
    with pytest.raises(
        SystemExit, match=r"dry run: would be refused: .*gain over champion.*; nothing was changed"
    ) as refusal:
        command(capsys, "promote", "--dry-run", "--evidence", again)
    assert isinstance(refusal.value.code, str), "exit code 1"
    assert "would pass, forced" in command(capsys, "promote", "--dry-run", "--force", "an outage", "--evidence", again)
    assert len(Champions(released, NAME).verdicts("2")) == 1
    with pytest.raises(SystemExit, match="was refused at look 1, and more looks would not change"):
        command(capsys, "promote")

    forced = command(capsys, "promote", "--force", "an outage", "--evidence", challenge(released, "b", **worse))
    assert "version 2 is champion, forced: an outage" in forced
    better = challenge(released, "c", champion="b" * 64, **over_champion({"gains": GOOD.gains}))
    assert "dry run: would pass" in command(capsys, "promote", "--dry-run", "--evidence", better)
    assert "version 3 is champion" in command(capsys, "promote", "--evidence", better)
    assert "version 3 rolled back, version 2 is champion again" in command(capsys, "rollback")
    assert "version 2 rolled back, version 1 is champion again" in command(capsys, "rollback")
    with pytest.raises(SystemExit, match="has no earlier champion to go back to"):
        command(capsys, "rollback")
    lines = command(capsys, "history").splitlines()
    assert [line.split()[2:4] for line in lines] == [["version", number] for number in "12332"]
    assert "gate: passed" in lines[0] and "gate: refused, forced: an outage" in lines[1] and "gate" not in lines[3]


def over_champion(values):
    """The same gains, the closest of them over the champion, too."""
    return {"gains": values["gains"] | {"champion": values["gains"]["chain-4"]}, "reference": "champion"}


def test_an_inconclusive_look_stays_open_until_documents_are_exhausted(released, capsys):
    with pytest.raises(SystemExit, match="version 1 is inconclusive: gain over chain-4"):
        command(capsys, "promote", "--evidence", challenge(released, "a", **OPEN))
    champions = Champions(released, NAME)
    assert "inconclusive at look 1 of 3" in command(capsys, "status") and champions.champion() is None
    assert next_look(champions.verdicts("1"), NAME, "1") == 2
    with pytest.raises(SystemExit, match="look 1 was taken already, by other evidence"):
        command(capsys, "promote", "--evidence", challenge(released, "a"))
    with pytest.raises(SystemExit, match="documents exhausted"):
        command(
            capsys, "promote", "--evidence", challenge(released, "a", look=2, documents_left=0, **gains(0.03, 0.03))
        )
    assert "version 1 is champion" in command(capsys, "promote", "--evidence", challenge(released, "a", look=3))
    assert [one["verdict"] for one in champions.verdicts("1")] == ["inconclusive", "inconclusive", "passed"]


def test_only_what_was_measured_counts_as_a_look():
    untried = {"passed": False, "verdict": "refused", "look": 1, "smallest_gain": None, "evidence_sha256": "x"}
    open_look = untried | {"verdict": "inconclusive", "smallest_gain": 0.05}
    assert next_look([], NAME, "1") == next_look([untried, untried], NAME, "1") == 1
    assert next_look([untried, open_look], NAME, "1") == 2
    require_new({"look": 1, "evidence_sha256": "y"}, [untried])
    require_new({"look": 1, "evidence_sha256": "x"}, [open_look])
    require_new({"look": 2, "evidence_sha256": "y"}, [open_look])
    with pytest.raises(ValueError, match="look 1 was taken already"):
        require_new({"look": 1, "evidence_sha256": "y"}, [open_look])
    with pytest.raises(ValueError, match="was refused at look 1"):
        next_look([{"passed": False, "checks": []}], NAME, "1")


def test_evidence_must_be_on_the_challenger_and_over_the_champion(released, capsys):
    file = challenge(released, "a")
    released.set_registered_model_alias(NAME, CHALLENGER, "2")
    with pytest.raises(SystemExit, match="on content aaaaaaaaaaaa, and the challenger, version 2, is bbbbbbbbbbbb"):
        command(capsys, "promote", "--evidence", file)
    command(capsys, "promote", "--evidence", challenge(released, "a"))
    for options in ([], ["--dry-run"], ["--force", "an outage"]):
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
    assert [line.split(":")[0] for line in said] == [NAME, "p-lookahead"]
    assert "champion version 1 (aaaaaaaaaaaa)" in said[0] and "the alias is behind" in said[0]
    assert str(released.get_registered_model(NAME).aliases[CHAMPION]) == "3"
    with Champions(released, NAME).lock():
        assert command(capsys, "status").splitlines() == said


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


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[]", "expected a mapping"),
        (b"\xff\x00", "decode"),
        ({"gains": None}, "gains: expected Mapping, got None"),
        ({"gains": {"chain-4": {"value": "much"}}}, "gains.chain-4"),
        ({"settings": {"T=0": None}}, "settings.T=0: expected a mapping of settings, got None"),
        ({"slices": {"code": {"value": 0.1}}}, "slices.code: key .* is missing"),
        ({"version": VERSION - 1}, "version must be 2"),
        ({"exactness": {"hrad": "false"}}, "exactness check 'hrad' must be true or false"),
        ({"verdict": 1}, "unknown key 'verdict'"),
    ],
)
def test_what_is_no_evidence_is_named(tmp_path, content, problem):
    file = tmp_path / "evidence.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(dataclasses.asdict(GOOD) | content).encode())
    with pytest.raises(ValueError, match=f"(?s)evidence.json holds no evidence.*{problem}.*Leave --evidence out"):
        read_evidence(file)


def test_evidence_is_read_as_it_was_written(tmp_path):
    write_json(tmp_path / "evidence.json", dataclasses.asdict(GOOD))
    assert read_evidence(tmp_path / "evidence.json") == GOOD


def test_a_trial_of_no_bundle_says_so(tmp_path):
    args = toy_bench(tmp_path, "trial", {})
    args.bundle = tmp_path / "nowhere"
    parameters = yaml.safe_load(args.params.read_text())
    parameters["pairs"]["p"]["promotion"] = {}
    args.params.write_text(yaml.safe_dump(parameters))
    with pytest.raises(ValueError, match="nowhere is no bundle, it lacks card.json and controller.safetensors"):
        trial_stage.run(args)


def of_a_newer_kind(card):
    card["kind"] = "prophet"


@pytest.mark.parametrize(
    ("seed", "change", "problem"),
    [(5, None, "does not belong here: target.weights"), (0, of_a_newer_kind, "unknown controller kind 'prophet'")],
)
def test_a_bundle_that_does_not_serve_the_pair_is_refused_by_contract(
    tmp_path, monkeypatch, capsys, seed, change, problem
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    toy_bench(tmp_path / "data" / "p", "promotion", {}).params.rename("params.yaml")
    Path("data/p/device.json").rename("data/device.json")
    random_bundle(
        Path("data/p/bundles/hrad"), ModelPair(tiny_llama(seed=seed), tiny_llama(seed=1, layers=1)), change=change
    )
    main(["register"])
    for forced in ([], ["--force", "an outage"]):
        with pytest.raises(SystemExit, match=f"version 1 is refused: contract: .*{problem}"):
            command(capsys, "promote", *forced)
    record = json.loads(Path("data/p/promotion/hrad-1/verdict.json").read_text())
    assert Path("data/p/promotion/hrad-1/challenger/card.json").is_file(), "a folder for every predictor and version"
    assert problem in record["evidence"]["problem"] and not record["evidence"]["documents"]
    champions = Champions(new_client(f"sqlite:///{tmp_path}/mlflow.db"), NAME)
    kept = json.loads(champions.client.get_model_version(NAME, "1").tags[VERDICT_TAG])
    assert len(champions.verdicts("1")) == 2, "the forced one, too"
    assert kept["verdict"] == "refused" and kept["checks"] == record["checks"] and kept["smallest_gain"] is None
    assert champions.champion() is None and champions.history() == []
