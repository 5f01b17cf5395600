"""A small random bundle of a learned controller for a pair, without any training."""

import dataclasses

import torch

from predictors.bundle import write_bundle
from predictors.contract import CaptureContract, ServingRange
from predictors.features import FeatureSpec
from predictors.network import HRADNetwork
from runtime.identity import pair_identity

LAYERS = (1, 2)
RULES = {"hrad": {"epsilon": 0.5}, "length": {"choice": "argmax", "draft_cost": 0.1}}


def random_bundle(
    folder,
    pair,
    feature_set="extended",
    gamma=2,
    seed=0,
    temperatures=(0.0, 1.0),
    change=None,
    kind="hrad",
    **thresholds,
):
    """Write a bundle whose head is random but sharp, made for ``pair``; ``change(card)`` edits the card before export."""
    num_classes = 3 if kind == "hrad" else gamma + 1
    torch.manual_seed(seed)
    hidden = pair.target.model.config.hidden_size
    spec = FeatureSpec(feature_set, LAYERS, hidden, hidden, gamma)
    reduced_size = None if feature_set == "paper" else 4
    network = HRADNetwork(spec.state_size, len(spec.scalars), reduced_size, (8, 8), num_classes=num_classes)
    with torch.no_grad():
        if feature_set == "extended":
            network.reduction.components.normal_()
        network.head[-1].weight.mul_(20)
    serving = ServingRange(
        dtype=str(pair.target.dtype).removeprefix("torch."),
        settings=tuple((temperature, 0.0, 1.0) for temperature in temperatures),
        min_context=1,
        max_context=200,
    )
    contract = CaptureContract(pair_identity(pair, LAYERS), serving, provenance={})
    card = {
        "kind": kind,
        "contract": contract.to_json(),
        "feature_spec": dataclasses.asdict(spec),
        "calibration": {"temperature": 1.0, "bias": [0.0] * num_classes},
        "thresholds": {"rule": dict(RULES[kind]), "max_distance": 1e9, "static_gamma": 2, **thresholds},
        "decoder": {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}, "verifier": "block"},
    }
    if change is not None:
        change(card)
    write_bundle(folder, card, network.state_dict())
    return folder
