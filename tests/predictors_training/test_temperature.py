"""Temperature scaling finds the temperature that was planted."""

import pytest
import torch

from predictors.head import Calibration
from predictors.training.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE, fit_calibration, fit_temperature


def planted(temperature, bias, rows=40_000):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, 3, generator=generator)
    law = Calibration(temperature, bias).probabilities(logits)
    return logits, torch.multinomial(law, 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("bias", [(0.0, 0.0, 0.0), (0.5, 0.3, -1.2)])
def test_a_planted_temperature_is_recovered(temperature, bias):
    logits, labels = planted(temperature, bias)
    assert fit_temperature(logits, labels, torch.tensor(bias)) == pytest.approx(temperature, rel=0.03)


def test_leaving_the_prior_out_gives_another_temperature():
    """The failing twin: a correction that is ignored shows."""
    logits, labels = planted(1.0, (0.5, 0.3, -1.2))
    assert abs(fit_temperature(logits, labels, torch.zeros(3)) - 1.0) > 0.05


def test_it_is_the_minimum():
    logits, labels = planted(2.0, (0.0, 0.0, 0.0), rows=500)
    best = fit_temperature(logits, labels, torch.zeros(3))

    def loss(t):
        return float(torch.nn.functional.cross_entropy(logits.double() / t, labels))

    assert loss(best) < min(loss(best * 1.02), loss(best / 1.02))


def test_separable_rows_stay_within_bounds():
    labels = torch.arange(3).repeat(10)
    right = torch.eye(3)[labels]
    assert MIN_TEMPERATURE <= fit_temperature(right, labels, torch.zeros(3)) < 0.05
    assert fit_temperature(-right, labels, torch.zeros(3)) == pytest.approx(MAX_TEMPERATURE, rel=1e-3)


def test_prior_correction_can_be_left_out():
    logits, labels = planted(1.0, (0.0, 0.0, 0.0), rows=500)
    natural, training = (0.3, 0.6, 0.1), (1 / 3,) * 3
    corrected = fit_calibration(logits, labels, natural, training)
    plain = fit_calibration(logits, labels, natural, natural)
    assert corrected.bias == pytest.approx([torch.tensor(3 * share).log().item() for share in natural], abs=1e-6)
    assert plain.bias == (0.0, 0.0, 0.0)
