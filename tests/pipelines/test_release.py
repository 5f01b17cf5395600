"""A release from registration to rollback by the real commands, with real bundles, against every kind of registry."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from pipelines.cli import main
from pipelines.outputs import write_json
from pipelines.registry.champions import Champions, Version
from pipelines.registry.tracking import new_client
from predictors.bundle import bundle_hash
from runtime import ModelPair, Randomness, load_decoder
from tests.bundles import random_bundle, routed_bundle
from tests.pipelines.hand_made_evidence import GOOD, gains
from tests.toys import tiny_llama

NAME = "p-auto"
CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}}
WORSE = gains(0.0)["gains"]


@pytest.fixture
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))


@pytest.fixture
def champions(tmp_path, monkeypatch, tracking_uri):
    """A workspace without any bundle, and the registry's champions of ``auto``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"promotion": {}, "trial": {}}}}))
    write_json(tmp_path / "data" / "device.json", {"slug": "toy-1c"})
    return Champions(new_client(tracking_uri), NAME)


def export(pair, number):
    """Write the ``number``-th bundle ``auto``; its content hash."""
    made = random_bundle(Path("made") / str(number) / "hrad", pair, seed=number)
    return bundle_hash(routed_bundle(Path("data/p/bundles/auto"), pair, made, CHAIN))


def evidence(content, over=None, known=GOOD.gains):
    """The file of evidence on the bundle of that ``content``, over the champion of content ``over``."""
    beside = {} if over is None else {"gains": known | {"champion": known["chain-4"]}, "reference": "champion"}
    made = dataclasses.replace(GOOD, predictor="auto", bundle_sha256=content, champion=over, **beside)
    write_json(Path(f"{content[:8]}.json"), dataclasses.asdict(made))
    return f"{content[:8]}.json"


def command(capsys, name, *arguments):
    capsys.readouterr()
    of = {"register": [], "status": ["--pair", "p"]}.get(name, ["--pair", "p", "--predictor", "auto"])
    main([name, *of, *arguments])
    return capsys.readouterr().out


def registered(champions):
    """How many versions there are, and which of them challenges."""
    return len(champions.client.search_model_versions(f"name = '{NAME}'")), champions.challenger()


def status(capsys):
    return json.loads(command(capsys, "status", "--json"))[NAME]


def text(folder, pair):
    decoder = load_decoder(folder, pair)
    return decoder.generate([1, 2, 3], max_new_tokens=12, temperature=1.0, randomness=Randomness(0)).tokens


def test_a_release_from_registration_to_rollback(champions, pair, capsys):
    first, second, third = contents = [export(pair, number) for number in (1, 2, 3)]
    assert len(set(contents)) == 3
    for number, content in enumerate(contents, 1):
        export(pair, number)
        for _ in range(2):  # once it is there, nothing more is registered
            command(capsys, "register")
            assert registered(champions) == (number, Version(str(number), content))
        assert status(capsys)["challenger"] == {"version": str(number), "sha256": content}
        if number == 1:
            command(capsys, "promote", "--evidence", evidence(content))
            assert champions.champion() == Version("1", first)
        if number == 2:
            file = evidence(content, first, WORSE)
            with pytest.raises(SystemExit, match="version 2 is refused: .*gain over chain-4"):
                command(capsys, "promote", "--evidence", file)
            assert status(capsys)["champion"] == {"version": "1", "sha256": first}
            command(capsys, "promote", "--evidence", file, "--force", "an outage")
            assert champions.champion() == Version("2", second) and champions.history()[-1].forced == "an outage"
    command(capsys, "promote", "--evidence", evidence(third, second))
    assert champions.champion() == Version("3", third)
    for number, content in (("2", second), ("1", first)):
        command(capsys, "rollback")
        assert champions.champion() == Version(number, content)
    lines = [line.split() for line in command(capsys, "history").splitlines()]
    assert [(line[3], line[5]) for line in lines] == [
        *(("1", "promoted"), ("2", "promoted"), ("3", "promoted")),
        *(("3", "rolled"), ("2", "rolled")),
    ]

    main(["fetch", f"models:/{NAME}@champion", "served"])
    export(pair, 1)
    assert bundle_hash("served") == first and text("served", pair) == text("data/p/bundles/auto", pair)
