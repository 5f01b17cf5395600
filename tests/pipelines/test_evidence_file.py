"""Evidence as a file: read as it was written, refused where it is on something else, and named where it is none."""

import dataclasses
import json

import pytest

from pipelines.outputs import write_json
from pipelines.promotion.champions import Version
from pipelines.promotion.evidence import VERSION, read_evidence, require_match
from tests.pipelines.test_gate import GOOD

VERSION_1 = Version("1", "a" * 64)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pair": "q"}, "on q-hrad, and the challenger is p-hrad"),
        ({"predictor": "length"}, "on p-length, and the challenger is p-hrad"),
        ({"origin": {"device": {"slug": "h100"}}}, "from machine h100, and this is toy-1c"),
        ({"bundle_sha256": "b" * 64}, "on content bbbbbbbbbbbb"),
        ({"champion": "b" * 64}, "compares with champion bbbbbbbbbbbb"),
    ],
)
def test_evidence_is_on_this_pair_predictor_content_and_machine(changes, problem):
    where = ("p", "hrad"), VERSION_1, None, "toy-1c"
    require_match(GOOD, *where)
    require_match(dataclasses.replace(GOOD, origin={"device": {"slug": "toy-1c"}}), *where)
    with pytest.raises(ValueError, match=problem):
        require_match(dataclasses.replace(GOOD, **changes), *where)


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
