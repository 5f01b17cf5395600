"""A small random H-RAD bundle for a pair, without any training."""

import dataclasses

import torch

from predictors.bundle import write_bundle
from predictors.contract import CaptureContract, ServingRange
from predictors.features import FeatureSpec
from predictors.network import HRADNetwork
from runtime.identity import pair_identity

LAYERS = (1, 2)


def random_bundle(
    folder, pair, feature_set="extended", gamma=2, seed=0, temperatures=(0.0, 1.0), change=None, **thresholds
):
    """Write a bundle whose head is random but sharp, made for ``pair``; ``change(card)`` edits the card before export."""
    torch.manual_seed(seed)
    hidden = pair.target.model.config.hidden_size
    spec = FeatureSpec(feature_set, LAYERS, hidden, hidden, gamma)
    network = HRADNetwork(spec.state_size, len(spec.scalars), None if feature_set == "paper" else 4, (8, 8))
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
        "kind": "hrad",
        "contract": contract.to_json(),
        "feature_spec": dataclasses.asdict(spec),
        "calibration": {"temperature": 1.0, "bias": [0.0, 0.0, 0.0]},
        "thresholds": {"rule": {"epsilon": 0.5}, "max_distance": 1e9, "static_gamma": 2, **thresholds},
        "decoder": {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}, "verifier": "block"},
    }
    if change is not None:
        change(card)
    write_bundle(folder, card, network.state_dict())
    return folder
