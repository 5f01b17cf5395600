"""What stages say of the profile they read."""

from dataclasses import replace

from pipelines.device_file import read_device_profile
from pipelines.outputs import write_json
from predictors.latency.soundness import noise_warning
from tests.predictors.affine_profile import PROFILE


def test_a_noisy_profile_is_named_where_it_is_read_and_a_sound_one_is_not(tmp_path, capsys):
    write_json(tmp_path / "quiet.json", PROFILE.to_record())
    loud = replace(PROFILE, noise=("draft rows=1: spread 85%",))
    write_json(tmp_path / "loud.json", loud.to_record())
    assert read_device_profile(tmp_path, "quiet").profile_hash == PROFILE.profile_hash
    assert capsys.readouterr().err == ""
    assert read_device_profile(tmp_path, "loud").noise == loud.noise
    assert capsys.readouterr().err == f"warning: {noise_warning(loud)}\n"
