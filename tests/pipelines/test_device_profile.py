"""What stages say of the profile they read."""

from dataclasses import replace

from pipelines.device_profile import read_device_profile
from pipelines.outputs import write_json
from tests.predictors.affine_profile import PROFILE


def test_a_noisy_profile_is_named_where_it_is_read_and_a_sound_one_is_not(tmp_path, capsys):
    write_json(tmp_path / "quiet.json", PROFILE.to_record())
    write_json(tmp_path / "loud.json", replace(PROFILE, noise=("draft rows=1: spread 85%",)).to_record())
    assert read_device_profile(tmp_path, "quiet").profile_hash == PROFILE.profile_hash
    assert capsys.readouterr().err == ""
    assert read_device_profile(tmp_path, "loud").noise == ("draft rows=1: spread 85%",)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ") and "spread 85%" in line and "dvc repro -sf latency@toy" in line
