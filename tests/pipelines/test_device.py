"""The machine as stage `device` describes it, and its profile where it is read."""

import re
from dataclasses import replace

import pytest

from pipelines.cli import main
from pipelines.outputs import write_json
from pipelines.places import read_device, read_device_profile
from pipelines.stages import device
from predictors.latency.soundness import noise_warning
from tests.predictors.affine_profile import PROFILE


@pytest.mark.parametrize(
    ("cpu", "gpus", "expected"),
    [
        ("Intel(R) Xeon(R) Processor", [], "intel-xeon-2c"),
        ("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", [], "intel-core-i7-8550u-2c"),
        ("AMD EPYC 9575F 64-Core Processor", [], "amd-epyc-9575f-2c"),
        ("any", [{"name": "NVIDIA H100 80GB HBM3"}], "nvidia-h100-80gb-hbm3"),
        ("any", [{"name": "NVIDIA L4"}, {"name": "NVIDIA L4"}], "nvidia-l4-x2"),
    ],
)
def test_slugs(cpu, gpus, expected):
    assert device.slug(cpu, 2, False, gpus) == expected


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "missing or damaged"),
        ("{", "missing or damaged"),
        ("{}", "its slug is None"),
        ("[]", "missing or damaged .it holds a list, not a dict"),
        ('{"slug": ""}', "its slug is ''"),
        ('{"slug": "../elsewhere"}', "its slug is"),
    ],
)
def test_a_file_that_describes_no_machine_is_named_with_the_remedy(tmp_path, content, problem):
    path = tmp_path / "device.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=f"device.json.*{problem}"):
        read_device(path)


def test_a_machine_is_described_alike_each_time_with_its_gpus(tmp_path, monkeypatch):
    for name in "ab":
        main(["device", str(tmp_path / f"{name}.json")])
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", read_device(tmp_path / "a.json")["slug"])
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559 MiB, 570.1'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert device.describe_device()["slug"] == "nvidia-h100-80gb-hbm3"
    fake.write_text(f"{fake.read_text()}echo 'WARNING: infoROM is corrupted at gpu 0000:00:1E.0'\n")
    assert device.describe_device()["slug"] == "nvidia-h100-80gb-hbm3"
    fake.write_text("#!/bin/sh\nexec sleep 9\n")
    monkeypatch.setattr(device, "SECONDS", 0.1)
    with pytest.raises(ValueError, match="did not answer within"):
        device.describe_device()


def test_a_noisy_profile_is_named_where_it_is_read_and_a_sound_one_is_not(tmp_path, capsys):
    write_json(tmp_path / "quiet.json", PROFILE.to_record())
    loud = replace(PROFILE, noise=("draft rows=1: spread 85%",))
    write_json(tmp_path / "loud.json", loud.to_record())
    assert read_device_profile(tmp_path, "quiet").profile_hash == PROFILE.profile_hash
    assert capsys.readouterr().err == ""
    assert read_device_profile(tmp_path, "loud").noise == loud.noise
    assert capsys.readouterr().err == f"warning: {noise_warning(loud)}\n"
