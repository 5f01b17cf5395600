"""``draftwright latency`` on hand-made profiles: ratios computed by hand, one plot, and what is wrong with a path."""

import json

import pytest

from pipelines import cli
from predictors.latency.profile import LatencyProfile, read_profile
from predictors.latency.soundness import noise_warning
from predictors.latency.throughput import generation_latency, iid_accepted_law
from tests.pipelines.hand_made_profile import PROFILE


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


def section(out, title):
    """The cells of the table below the heading that begins with ``title``, by the first one."""
    (found,) = [part for part in out.split("\n## ") if part.startswith(title)]
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in found.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in rows}


def columns(out, title):
    """The same by the header's names, of every row."""
    header, _, *rows = section(out, title).items()
    return [dict(zip(header[1], cells, strict=True)) for _, cells in rows]


@pytest.mark.parametrize(("missing", "left"), [("branch_drawing", []), ("draft_prefill", ["hidden γ"])])
def test_a_gamma_that_cannot_be_computed_is_not_shown(data, capsys, missing, left):
    tables = {name: table for name, table in PROFILE["tables"].items() if name != missing}
    costs = columns(shown(capsys, another(data, record={**PROFILE, "tables": tables})), "By tokens of context")
    assert [name for name in costs[0] if name.startswith("hidden γ")] == left


def test_speeds_are_predicted_for_an_acceptance(data, capsys):
    options = ("--acceptance", "0.7", "--prompt-tokens", "20", "--new-tokens", "60", "--temperature", "1")
    out = shown(capsys, data, *options).split("# Predicted tokens/s at acceptance 0.7\n\n")[1]
    assert out.startswith("60 tokens after a prompt of 20, T=1\n\n")
    rows = [[cell.strip(" *") for cell in line.strip("| ").split("|")] for line in out.splitlines() if "|" in line]
    lines = {row[0]: row[1:] for row in rows}
    profile = LatencyProfile.from_record(PROFILE, "profile")
    plain, *_ = generation_latency(profile, [1.0], 0, 20, 60, sampled=True).speeds(60)
    assert lines["plain"][0].startswith(f"{plain:.0f} (") and lines["plain"][1] == "1.00x"
    four = generation_latency(profile, iid_accepted_law(0.7, 4), 4, 20, 60, sampled=True)
    value, low, high = four.speeds(60)
    speed = f"{value:.0f} ({low:.0f}–{high:.0f})"
    assert lines["chain γ=4"] == [speed, f"{value / plain:.2f}x"]
    speeds = {name: int(cells[0].split()[0]) for name, cells in lines.items() if "(" in cells[0]}
    (marked,) = [line for line in out.splitlines() if line.startswith("| **")]
    assert speeds[marked.split("**")[1]] == max(speeds.values())


def test_an_impossible_acceptance_is_refused(data, monkeypatch):
    with pytest.raises(SystemExit, match=r"alpha must lie in \[0, 1\], got 1.5"):
        cli.main(["latency", str(data), "--acceptance", "1.5"])
    (path,) = data.glob("*/latency/*.json")
    profile = json.loads(path.read_text())
    profile["tables"] = {name: table for name, table in profile["tables"].items() if "draft" not in name}
    path.write_text(json.dumps(profile))
    with pytest.raises(SystemExit, match="has no draft model .* Leave --acceptance out"):
        cli.main(["latency", str(data), "--acceptance", "0.5"])


def test_a_plot_is_drawn_of_one_profile(data, capsys, tmp_path):
    path = tmp_path / "plots" / "latency.png"
    assert shown(capsys, data, "--plot", path).endswith(f"{path}\n")
    assert path.read_bytes().startswith(b"\x89PNG")
    another(data)
    with pytest.raises(SystemExit, match="--plot draws one profile, and there are 2"):
        cli.main(["latency", str(data), "--plot", str(path)])


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


def test_a_noisy_profile_is_called_that(data, capsys):
    assert "noise" not in shown(capsys, data)
    noise = "draft rows=1: spread 85%"
    path = another(data, record={**PROFILE, "noise": [noise]})
    cli.main(["latency", str(path)])
    captured = capsys.readouterr()
    assert f"noise: {noise}" in captured.out and noise_warning(read_profile(path)) in captured.err


def test_passes_are_held_against_the_bandwidth_and_joules_where_they_were_counted(data, capsys):
    """A target pass of 8 ms whose weights a copy moves in 4, at 100 W."""
    hardware = {"bandwidth": 1e9, "weights": {"target": 4e6, "draft": 2e5}, "watts": 100.0}
    path = another(data, record={**PROFILE, "provenance": {**PROFILE["provenance"], "hardware": hardware}})
    assert "(1.0 GB/s copied) of a pass of one token: target 50%, 0.8 J; draft 20%, 0.1 J" in shown(capsys, path)
    assert "share of bandwidth" not in shown(capsys, data, "--pair", "toys")
