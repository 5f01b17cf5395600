"""Which decodes of stage ``measure`` say something of which candidate."""

from dataclasses import asdict

import pytest

from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.names import DECODES_FILE, PLAIN, PROVENANCE
from pipelines.measuring.tables import write_decodes
from pipelines.measuring.tuning.candidates import Measured
from pipelines.outputs import write_json
from predictors.sampling import SamplingSettings

GREEDY, SAMPLED = SamplingSettings(0.0), SamplingSettings(1.0)
INPUTS = {"pair_sha256": "pair", "parameters": {"max_new_tokens": 8, "threads": 1}}


def chain(gamma, **controller):
    made = {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}, "verifier": "block"}
    return made | ({"controller": controller} if controller else {})


ARMS = [
    ArmRow(PLAIN, "plain", {"method": "autoregressive"}),
    ArmRow("plain_hf_forward", "plain", {"method": "autoregressive"}, forward="hugging_face"),
    ArmRow("short", "chain", chain("{gamma}"), each={"gamma": [2]}),
    ArmRow("twin", "chain", chain(2)),
    ArmRow("ema", "rule", chain(8, kind="ema")),
    ArmRow("hrad", "learned", bundle="hrad"),
    ArmRow("length", "learned", bundle="length"),
    ArmRow("pearl-4", "pearl", {"preset": "pearl", "gamma": 4, "overlap": "none"}),
    ArmRow("branches", "specbranch", bundle="specbranch", options={"overlap": "none"}),
]
TIMED = [arm.name for arm in ARMS]


def decodes(names, split="validation", settings=GREEDY, prompts=4):
    return [
        {
            "arm": name,
            "prompt": f"{split}-{n}",
            "document": f"{split}-{n}",
            "slice": "code",
            "split": split,
            **asdict(settings),
            "block": f"{split}/{n}/{settings.name}",
            "repeat": 0,
            "tokens": 10,
            "seconds": 1.0,
            "output": [1],
        }
        for name in names
        for n in range(prompts)
    ]


@pytest.fixture
def folder(tmp_path):
    rows = [row for at in (GREEDY, SAMPLED) for split in ("validation", "test") for row in decodes(TIMED, split, at)]
    write_decodes(tmp_path / DECODES_FILE, rows)
    hashes = {"hrad": "same", "length": "old", "specbranch": "same"}
    origin = {**INPUTS, "parameters": {**INPUTS["parameters"], "arms": [asdict(arm) for arm in ARMS]}}
    write_json(tmp_path / PROVENANCE, origin | {f"{name}_bundle_sha256": value for name, value in hashes.items()})
    return tmp_path


HASHES = {"hrad": "same", "length": "new", "specbranch": "same"}


def read(folder, **changes):
    return Measured.read(folder, INPUTS | changes, folder / "bundles", HASHES)


def found(folder, name, served, settings=GREEDY, split="validation"):
    return read(folder).of(settings, {name: served}, split)


def test_a_candidate_finds_its_decoder_whatever_its_name(folder):
    for name, served in (
        (PLAIN, {"decoder": {"method": "autoregressive"}}),
        ("chain-2", {"decoder": chain(2, kind="fixed")}),
        ("hrad", {"bundle": "hrad"}),
    ):
        rows = found(folder, name, served)
        assert len(rows) == 4 and {row["arm"] for row in rows} == {name}, name
        assert {row["temperature"] for row in rows} == {0.0} and {row["split"] for row in rows} == {"validation"}


def test_another_decoder_of_the_same_name_is_none(folder):
    assert any(row["arm"] == "ema" for row in read(folder).rows), "by its name it would be found"
    assert found(folder, "ema", {"decoder": chain(12, kind="ema")}) == []
    assert len(found(folder, "ema", {"decoder": chain(8, kind="ema")})) == 4


def test_a_bundle_of_other_content_is_none(folder):
    assert found(folder, "length", {"bundle": "length"}) == []


def test_splits_and_settings_are_kept_apart(folder):
    served = {"bundle": "hrad"}
    rows = [found(folder, "hrad", served, at, split) for at in (GREEDY, SAMPLED) for split in ("validation", "test")]
    assert [len(some) for some in rows] == [4] * 4
    assert len({row["block"] for some in rows for row in some}) == 16
    assert found(folder, "hrad", served, SamplingSettings(1.0, top_k=5)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"pair_sha256": "another"},
        {"parameters": {"max_new_tokens": 9, "threads": 1}},
        {"parameters": {"max_new_tokens": 8, "threads": 2}},
    ],
)
def test_what_was_measured_otherwise_says_nothing(folder, change):
    other = read(folder, **change)
    assert other.rows == [] and other.note is not None
    assert read(folder).note is None
