"""The stage ``latency`` on tiny models, and ``draftwright latency`` on hand-made profiles: ratios computed by hand, one plot."""

import json
import re

import pytest

import runtime.latency
from pipelines import cli
from pipelines.stages import latency as profile
from predictors.latency.profile import LatencyProfile, read_profile
from predictors.latency.soundness import noise_warning, waiting_noise
from predictors.latency.throughput import generation_latency, iid_accepted_law
from tests.pipelines.hand_made_profile import PROFILE
from tests.pipelines.toy_bench import toy_bench

PARAMETERS = {"draft_rows": [1, 3], "target_tokens": [1, 2, 5], "reference_rows": [1], "reference_tokens": [1, 5]}
PARAMETERS |= {"contexts": [4, 300], "prefill_tokens": [8], "drafted": [0, 2], "tree_rules": ["specinfer"]}
PARAMETERS |= {"tree_nodes": [3], "branch_rows": [1, 2], "features": [16], "visits": 3, "warmup": 0, "calls": 2}
PARAMETERS |= {"threads": 1, "repairs": 0}  # what tiny models take is noise


def made_rows(cell, seconds, waited=0.0):
    """A visit's rows, whatever the cell really takes."""
    visit = {"seconds": seconds, "waited": waited, "lasted": 1.0}
    return [{"table": table, "at": dict(cell.at), **visit} for table in cell.tables]


def growing(cell):
    """Seconds that grow with all coordinates, as a quiet machine's do; of plain decoding, those of its cells."""
    at = sum(cell.at.values())
    if cell.tables == ("plain",):
        return 0.011 + 1e-4 * at
    return {"target": 1e-2, "draft": 1e-3}.get(cell.tables[0].split("_")[0], 1e-3) + 1e-4 * at


class FakeSweeps:
    """Stands for `sweep`: a cell takes `growing` seconds, and more in disturbed sweeps by a factor."""

    def __init__(self, disturbed=lambda number, cell: 1.0, waited=lambda number: 0.0):
        self.visited, self._disturbed, self._waited = [], disturbed, waited

    def __call__(self, cells, order, warmup, calls, visited):
        number, rows = len(self.visited), []
        self.visited.append([place for cell in cells for place in cell.places])
        for cell in cells:
            seconds = growing(cell) * self._disturbed(number, cell)
            rows += made_rows(cell, [seconds] * calls, self._waited(number))
            visited()
        return rows


@pytest.fixture
def args(tmp_path):
    args = toy_bench(tmp_path, "latency", PARAMETERS)
    del args.prompts, args.latency  # the stage needs none
    return args


def test_the_stage_writes_a_profile_of_this_device_and_prints_its_cost_ratios(args, capsys):
    other = args.output / "other-device.json"
    other.parent.mkdir()
    other.write_text("kept")
    profile.run(args)
    assert sorted(path.name for path in args.output.iterdir()) == ["other-device.json", "toy-1c.json"]
    assert other.read_text() == "kept"
    measured = read_profile(args.output / "toy-1c.json")
    assert measured.pair == "p" and len(measured.tables) == 23
    assert {table.calls for table in measured.tables.values()} == {6}  # 3 visits of 2 calls
    assert measured.tables["target"].axes == {"tokens": [1, 2, 5], "context": [4, 251]}
    assert measured.tables["target"].median.shape == (3, 2)
    assert {name: measured.settings[name] for name in PARAMETERS} == PARAMETERS
    assert measured.provenance["device"]["slug"] == "toy-1c" and measured.provenance["threads"] == 1
    (cut,) = measured.provenance["notes"]
    assert cut.startswith("contexts ") and re.findall(r"\d+", cut) == ["300", "251"]
    assert {"commit", "versions", "date", "models", "pair_sha256", "code_sha256"} <= set(measured.provenance)
    printed = re.findall(r"^context (\d+): \D+([\d.]+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert printed == [(str(context), f"{measured.cost_ratio(context):.1f}") for context in (4, 251)]


def test_a_drafter_is_measured_and_its_profile_is_shown(tmp_path, capsys):
    args = toy_bench(tmp_path, "latency", PARAMETERS, drafter=True)
    profile.run(args)
    path = args.output / "toy-1c.json"
    measured = read_profile(path)
    assert len(measured.tables) == 22, "no pass of it by Hugging Face's forward, and those that begin a round"
    first = measured.tables["draft_first"]
    assert first.axes == {"context": [4, 251], "rows": [1, 3]} and first.calls == 6
    assert measured.latency("draft_first", rows=3, context=251).seconds > 0
    origin = measured.provenance
    assert origin["models"] == {name: {"dtype": "float32", "forward": "packed"} for name in ("target", "draft")}
    hidden, wide = 32, 64
    products = 2 * hidden * (hidden + 2 * hidden // 2) + hidden * hidden + 3 * hidden * wide
    assert origin["hardware"]["weights"]["draft"] == 4 * (products + 4 * hidden + 31 * hidden)
    capsys.readouterr()
    cli.main(["latency", str(path), "--acceptance", "0.7", "--plot", str(tmp_path / "latency.png")])
    _, of_first = capsys.readouterr().out.split("draft first")
    table = [line.split("|")[1].strip() for line in of_first.split("##")[0].splitlines() if line.startswith("|")]
    assert table == ["rows", "---", "1", "3"]
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_seconds_stay_with_their_coordinates_from_the_calls_to_the_file(args, monkeypatch):
    """Every cell is given seconds that its coordinates determine; the file has them in place."""

    def made_up(cells, order, warmup, calls, visited):
        seconds = [1.0 + sum(len(name) * value for name, value in cell.at.items()) for cell in cells]
        return [row for cell, one in zip(cells, seconds, strict=True) for row in made_rows(cell, [one] * calls)]

    monkeypatch.setattr(profile, "sweep", made_up)
    profile.run(args)
    tables = read_profile(args.output / "toy-1c.json").tables
    for tokens in (1, 2, 5):
        for context in (4, 251):
            assert tables["target"].at(tokens=tokens, context=context).seconds == 1 + 6 * tokens + 7 * context
    assert tables["chain_drawing"].at(drafted=2, sampled=1).seconds == 1 + 7 * 2 + 7


def test_an_interrupted_measurement_goes_on_after_its_last_whole_sweep(args, monkeypatch, capsys):
    real, sweeps = runtime.latency.sweep, []

    def interrupted(cells, order, warmup, calls, visited):
        if len(sweeps) == 2:
            raise KeyboardInterrupt
        sweeps.append([cell.at for cell in order.sample(cells, len(cells))])
        return real(cells, order, warmup, calls, visited)

    monkeypatch.setattr(profile, "sweep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        profile.run(args)
    assert not (args.output / "toy-1c.json").exists()
    log = [json.loads(line) for line in (args.output / "toy-1c" / "partial.jsonl").read_text().splitlines()]
    assert [block["key"] for block in log[1:]] == ["sweep/0", "sweep/1"]
    assert sweeps[0] != sweeps[1]  # freshly shuffled

    later = []
    monkeypatch.setattr(profile, "sweep", lambda *arguments: later.append(1) or real(*arguments))
    profile.run(args)
    assert re.search(r"after (\d+)", capsys.readouterr().out)[1] == "2"
    assert len(later) == 1
    assert {table.calls for table in read_profile(args.output / "toy-1c.json").tables.values()} == {6}
    assert [path.name for path in args.output.iterdir()] == ["toy-1c.json"]


def is_bad(cell):
    return cell.tables == ("target",) and cell.at == {"tokens": 2, "context": 4}


@pytest.fixture
def repaired(tmp_path, monkeypatch):
    """Run the stage with two repairs on made-up sweeps; the profile."""

    def run(*given):
        sweeps = FakeSweeps(*given)
        monkeypatch.setattr(profile, "sweep", sweeps)
        args = toy_bench(tmp_path, "latency", {**PARAMETERS, "repairs": 2})
        profile.run(args)
        return read_profile(args.output / "toy-1c.json"), sweeps.visited

    return run


def test_a_disturbed_cell_is_measured_again_and_its_new_calls_replace_the_old(repaired, capsys):
    """Two of three sweeps meet another job at one cell: its quartiles lie far apart."""
    measured, visited = repaired(lambda number, cell: 4.0 if number in (1, 2) and is_bad(cell) else 1.0)
    assert len(visited) == 3 + 3, "one round of as many visits"
    again = list(map(str, visited[3]))
    assert "target context=4 tokens=2" in again and len(again) < len(visited[0]) / 4
    assert measured.noise == () and "warning" not in capsys.readouterr().err
    assert measured.latency("target", tokens=2, context=4).seconds == pytest.approx(1e-2 + 6e-4)
    assert {table.calls for table in measured.tables.values()} == {6}


def test_what_stays_unsound_is_named_in_the_profile_and_on_the_terminal(repaired, capsys):
    measured, visited = repaired(lambda number, cell: 1.0 + 3.0 * (number % 2) if is_bad(cell) else 1.0)
    assert len(visited) == 3 + 2 * 3, "no more rounds than repairs"
    assert any(sentence.startswith("target context=4 tokens=2: ") for sentence in measured.noise)
    assert noise_warning(measured) in capsys.readouterr().err


def test_a_busy_machine_is_not_measured_for_ever(repaired):
    """Every cell is slow in every other sweep: no moment was disturbed, the machine is."""
    measured, visited = repaired(lambda number, cell: 1.0 + 2.0 * (number % 2))
    assert len(visited) == 3 and len(measured.noise) > 10


def test_other_jobs_are_recognised_where_all_cells_are_slow_alike(repaired):
    """Timings that look sound, from a process that waited for a processor half of its time."""
    measured, _ = repaired(lambda number, cell: 3.0, lambda number: 0.5)
    assert list(measured.noise) == waiting_noise(0.5) != []


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data" / "toys" / "latency" / "toy-1c.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(PROFILE))
    return tmp_path / "data"


def another(data, pair="others", record=PROFILE):
    path = data / pair / "latency" / "toy-1c.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**record, "pair": pair}))
    return path


def shown(capsys, *arguments):
    cli.main(["latency", *map(str, arguments)])
    return capsys.readouterr().out


@pytest.mark.parametrize(("missing", "known"), [("branch_drawing", False), ("draft_prefill", True)])
def test_a_gamma_that_cannot_be_computed_is_not_shown_and_noise_is(data, capsys, missing, known):
    tables = {name: table for name, table in PROFILE["tables"].items() if name != missing}
    out = shown(capsys, another(data, record={**PROFILE, "tables": tables, "noise": ["spread 85%"]}))
    assert ("| hidden γ" in out) == known and "noise: spread 85%" in out


def test_speeds_are_predicted_for_an_acceptance(data, capsys):
    options = ["--acceptance", "0.7", "--prompt-tokens", "20", "--new-tokens", "60", "--temperature", "1"]
    out = shown(capsys, data, *options).split("# Predicted tokens/s at acceptance 0.7\n\n")[1]
    rows = [[cell.strip(" *") for cell in line.strip("| ").split("|")] for line in out.splitlines() if "|" in line]
    lines = {name: cells for name, *cells in rows}
    read = LatencyProfile.from_record(PROFILE, "profile")
    plain, *_ = generation_latency(read, [1.0], 0, 20, 60, sampled=True).speeds(60)
    assert lines["plain"][0].startswith(f"{plain:.0f} (") and lines["plain"][1] == "1.00x"
    four = generation_latency(read, iid_accepted_law(0.7, 4), 4, 20, 60, sampled=True)
    value, low, high = four.speeds(60)
    assert lines["chain γ=4"] == [f"{value:.0f} ({low:.0f}–{high:.0f})", f"{value / plain:.2f}x"]
    speeds = {name: int(cells[0].split()[0]) for name, cells in lines.items() if "(" in cells[0]}
    (marked,) = [line for line in out.splitlines() if line.startswith("| **")]
    assert speeds[marked.split("**")[1]] == max(speeds.values())


def test_an_impossible_acceptance_is_refused(data):
    with pytest.raises(SystemExit, match=r"alpha must lie in \[0, 1\], got 1.5"):
        cli.main(["latency", str(data), "--acceptance", "1.5"])
    (path,) = data.glob("*/latency/*.json")
    profile = json.loads(path.read_text())
    profile["tables"] = {name: table for name, table in profile["tables"].items() if "draft" not in name}
    path.write_text(json.dumps(profile))
    with pytest.raises(SystemExit, match="has no draft model .* Leave --acceptance out"):
        cli.main(["latency", str(data), "--acceptance", "0.5"])


def test_a_plot_is_drawn_of_one_profile(data, tmp_path):
    another(data)
    with pytest.raises(SystemExit, match="--plot draws one profile, and there are 2"):
        cli.main(["latency", str(data), "--plot", str(tmp_path / "latency.png")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], r"no latency profile below nowhere\. Run dvc repro"),
        (["data", "--pair", "none"], r"no latency profile of pair 'none' below data\."),
        (["data/damaged.json"], "data/damaged.json: damaged latency profile .*dvc repro"),
    ],
)
def test_what_is_no_profile_is_refused(data, monkeypatch, arguments, message):
    monkeypatch.chdir(data.parent)
    (data / "damaged.json").write_text("{")
    with pytest.raises(SystemExit, match=message):
        cli.main(["latency", *arguments])


def test_passes_are_held_against_the_bandwidth_and_joules_where_they_were_counted(data, capsys):
    """A target pass of 8 ms whose weights a copy moves in 4, at 100 W."""
    hardware = {"bandwidth": 1e9, "weights": {"target": 4e6, "draft": 2e5}, "watts": 100.0}
    path = another(data, record={**PROFILE, "provenance": {**PROFILE["provenance"], "hardware": hardware}})
    assert "(1.0 GB/s copied) of a pass of one token: target 50%, 0.8 J; draft 20%, 0.1 J" in shown(capsys, path)
    assert "share of bandwidth" not in shown(capsys, data, "--pair", "toys")
