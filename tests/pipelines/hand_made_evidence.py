"""Evidence written by hand that the gate passes, and changes of it."""

import dataclasses
import math

from pipelines.gate.evidence import GateEvidence
from pipelines.measuring.gain import Estimate


def estimate(gain, error=0.015, **changes):
    return dataclasses.replace(Estimate(math.log1p(gain), error, 30.0, 40, 60), **changes)


PLAIN, STATIC = "autoregressive", "chain-4"
GOOD = GateEvidence(
    pair="p",
    predictor="hrad",
    bundle_sha256="a" * 64,
    champion=None,
    problem=None,
    exactness={"hrad": True},
    calibration_error=0.03,
    gains={PLAIN: estimate(0.9), "chain-2": estimate(0.12), STATIC: estimate(0.06)},
    reference=STATIC,
    settings={"T=0": estimate(0.07), "T=1": estimate(0.05, 0.02)},
    slices={"code": estimate(0.06), "prose": estimate(0.05, 0.02), "tables": None},
    documents=tuple(f"d{number}" for number in range(45)),
    trained_documents=("t0", "t1"),
)


def change(**values):
    return dataclasses.replace(GOOD, **values)


def gains(gain, error=0.015, rival=STATIC):
    return {"gains": GOOD.gains | {rival: estimate(gain, error)}}
