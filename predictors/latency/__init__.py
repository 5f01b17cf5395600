"""What passes cost on a machine, and the throughput that follows: measured tables, acceptance laws, predictions."""

from predictors.latency.acceptance import AcceptanceStatistics, iid_accepted_law
from predictors.latency.branching import BranchRound, balanced_gamma, branch_parallel_prediction, branch_round_latency
from predictors.latency.profile import LatencyProfile, read_profile
from predictors.latency.tables import Latency, LatencyTable
from predictors.latency.throughput import (
    Prediction,
    Shape,
    chain_latency,
    draft_cost,
    generation_latency,
    plain_latency,
    round_latency,
)

__all__ = [
    "AcceptanceStatistics",
    "BranchRound",
    "Latency",
    "LatencyProfile",
    "LatencyTable",
    "Prediction",
    "Shape",
    "balanced_gamma",
    "branch_parallel_prediction",
    "branch_round_latency",
    "chain_latency",
    "draft_cost",
    "generation_latency",
    "iid_accepted_law",
    "plain_latency",
    "read_profile",
    "round_latency",
]
