"""What keeps a bundle from being tried: its settings, calibration, losslessness and exactness."""

import shutil

import pytest

from pipelines.gate import trial
from pipelines.gate.trial import Calibration, calibration_of
from pipelines.gate.verdict import CHAMPION
from pipelines.measuring import exactness
from pipelines.measuring.arms import Run
from predictors.sampling import SamplingSettings
from tests.bundles import auto_bundle, random_bundle, routed_bundle, selector_bundle, settings_bundle, stop_bundle


def test_settings_are_those_of_challenger_and_champion_with_their_filters(tried, tmp_path):
    pair, bundles = tried

    def filtered(card):
        card["contract"]["serving_range"]["settings"] = [[0.0, 0.0, 1.0], [1.0, 20.0, 0.9]]

    other = random_bundle(tmp_path / "other", pair, change=filtered)
    settings = trial.settings_of(bundles[CHAMPION], other)
    assert [made.name for made in settings] == ["T=0", "T=1", "T=1, top-k 20, top-p 0.9"]
    assert settings[0] == SamplingSettings(0.0)


def test_auto_is_calibrated_as_badly_as_the_worst_of_its_bundles(tried, tmp_path):
    pair, bundles = tried
    settings = {"method": "autoregressive"}
    whole = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], settings)
    assert calibration_of(whole) == calibration_of(bundles["challenger"]) == Calibration(0.02)
    alone = auto_bundle(tmp_path / "alone", pair, [{"settings": {"temperature": 0.0}, "decoder": settings}])
    assert calibration_of(alone).error is None and calibration_of(alone).exemption


def unmeasured(card):
    card["measured_quality"] = {"tokens": {"ece": None}}


def test_a_model_of_unknown_calibration_is_not_exempt(tried, tmp_path):
    pair, bundles = tried
    for name, change in (("hrad", unmeasured), ("other", None)):
        assert calibration_of(random_bundle(tmp_path / name, pair, change=change)) == Calibration(None)
    assert calibration_of(stop_bundle(tmp_path / "stop", pair, change=unmeasured)) == Calibration(None)
    selector = selector_bundle(tmp_path / "selector", pair)
    assert calibration_of(selector).error is None and "delayed-tree" in calibration_of(selector).exemption

    def routed(place, *names):
        return auto_bundle(tmp_path / place, pair, [{"settings": {}, "bundle": name} for name in names])

    for place, names, wanted in (
        ("a", ("hrad", "good"), Calibration(None)),
        ("b", ("selector", "good"), Calibration(0.02)),
        ("c", ("selector",), calibration_of(selector)),
    ):
        whole = routed(place, *names)
        for name in names:
            shutil.copytree(bundles["challenger"] if name == "good" else tmp_path / name, whole / name)
        assert calibration_of(whole) == wanted


IN_TURN = {"method": "branch_parallel", "overlap": "none"}


OVERLAP_AUTO = {"method": "branch_parallel", "overlap": "auto"}


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (IN_TURN, {"(overlap", "'none'),", "'auto',", "'threads'", "'streams'."}),
        (OVERLAP_AUTO, {"(overlap", "'none'),", "'auto'", "core"}),
    ],
)
def test_what_is_on_a_virtual_clock_is_not_tried(tried, tmp_path, monkeypatch, decoder, named):
    """The problem names the option to change."""
    pair, bundles = tried
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    alone = settings_bundle(tmp_path / "alone", pair, decoder)
    routed = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], decoder)
    for bundle, part in ((alone, "its decoder"), (routed, "route 2 (T=1)")):
        problem = trial.problem_of(bundle, pair)
        assert problem.startswith(f"{bundle}: {part} ") and named <= set(problem.split())
    assert trial.problem_of(bundles["challenger"], pair) is None


def test_every_route_must_be_exact(tried, tmp_path, monkeypatch):
    """The greedy route is right; the route for temperature 1 says something else."""
    pair, bundles = tried
    form = exactness.format_of(pair)
    routed = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], {"method": "autoregressive"})
    assert trial.exact(pair, routed, [[1, 2, 3]], 8) == {
        f"route 1 (T=0), greedy text 1, {form}": True,
        f"route 2 (T=1), greedy text 1, {form}": True,
    }
    arm_of = exactness.decoder_arm

    def broken(decoder, budget):
        right = arm_of(decoder, budget)
        learned = decoder.controller.kind == "hrad"
        return right if learned else lambda prompt, settings, seed: Run([0, 1, 2], None)

    monkeypatch.setattr(exactness, "decoder_arm", broken)
    assert not trial.exact(pair, routed, [[1, 2, 3]], 8)[f"route 2 (T=1), greedy text 1, {form}"]
