"""A release from registration to rollback by the real commands, with real bundles, against every kind of registry."""

import dataclasses
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from pipelines.cli import main
from pipelines.outputs import write_json
from pipelines.promotion.champions import Champions, Version
from pipelines.promotion.names import CHALLENGER, CHAMPION
from pipelines.tracking import new_client
from predictors.bundle import bundle_hash
from runtime import ModelPair, Randomness, load_decoder
from tests.bundles import random_bundle, routed_bundle
from tests.pipelines.test_gate import GOOD, gains
from tests.toys import tiny_llama

NAME = "p-auto"
CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}}
WORSE = gains(0.0)["gains"]
SECONDS = 120


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


def promotion(processes, uri, evidence, output):
    """A process that promotes by what the pipe ``evidence`` will say, from a workspace of its own."""
    os.mkfifo(evidence)
    process = processes.Process(target=promote_here, args=(Path.cwd(), uri, evidence, output))
    process.start()
    return process


def promote_here(folder, uri, evidence, output):
    """The command, with all that it prints in ``output``."""
    os.chdir(folder)
    os.environ["MLFLOW_TRACKING_URI"] = uri
    with output.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    main(
        ["promote", *("--pair", "p", "--predictor", "auto"), "--evidence", evidence, "--output", f"{evidence}-verdict"]
    )


def opened(pipe, process, output):
    """The pipe for writing, as soon as the process waits for what it will say."""
    deadline = time.monotonic() + SECONDS
    while True:
        assert process.is_alive() and time.monotonic() < deadline, output.read_text()
        with suppress(OSError):  # nobody reads yet
            return os.fdopen(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "w")
        time.sleep(0.05)


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


def test_of_two_processes_that_promote_at_once_one_fails_loudly(champions, pair, capsys, tracking_uri, processes):
    contents = {}
    for number in (1, 2, 3):
        contents[str(number)] = export(pair, number)
        command(capsys, "register")
    champions.client.set_registered_model_alias(NAME, CHALLENGER, "1")
    command(capsys, "promote", "--evidence", evidence(contents["1"]))

    outputs = {version: Path(f"{version}.txt") for version in "23"}
    started, pipes = {}, {}
    try:
        for version, output in outputs.items():
            champions.client.set_registered_model_alias(NAME, CHALLENGER, version)
            started[version] = promotion(processes, tracking_uri, f"pipe-{version}", output)
            pipes[version] = opened(f"pipe-{version}", started[version], output)  # it knows champion and challenger
        for version, pipe in pipes.items():
            with pipe:
                pipe.write(Path(evidence(contents[version], contents["1"])).read_text())
        for process in started.values():
            process.join(SECONDS)
        codes = {version: process.exitcode for version, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.join()
    assert sorted(codes.values()) == [0, 1], [output.read_text() for output in outputs.values()]
    winner, loser = sorted(codes, key=codes.__getitem__)
    assert contents[winner][:12] in outputs[loser].read_text(), "the refusal names the champion it met"
    made = [(event.number, event.version, event.sha256) for event in champions.history()]
    assert made == [(number, version, contents[version]) for number, version in enumerate(["1", winner], 1)]
    assert str(champions.client.get_registered_model(NAME).aliases[CHAMPION]) == winner
    assert not champions.client.search_registered_models(f"name = '{NAME}.lock'")
    main(["fetch", f"models:/{NAME}@champion", "served"])
    assert bundle_hash("served") == contents[winner]
