"""The core's small pieces: configuration, metrics, features, contract, calibration."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import pytest
import torch

from predictors.bundle import (
    CaptureContract,
    ContractError,
    Identity,
    ModelIdentity,
    ServingRange,
    require_same_identity,
)
from predictors.config import Checked, Count, Probability, ascending, not_empty, of_length, one_of, parse_config
from predictors.head import Calibration, FeatureSpec, HRADNetwork, assemble, state_vector
from predictors.network import squared_distance
from predictors.rounds import RoundRecord, block_efficiency, mean_accepted_length


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1


@dataclass(frozen=True)
class Outer:
    gamma: int
    name: str | None = None
    inner: Inner = Inner()
    sizes: tuple[int, ...] = ()

    def __post_init__(self):
        if self.gamma < 1:
            raise ValueError(f"gamma must be >= 1, got {self.gamma}.")


def test_parse_config():
    parsed = parse_config(Outer, {"gamma": 2, "inner": {"rate": 1}, "sizes": [1, 2], "name": None}, "here")
    assert parsed == Outer(2, None, Inner(1.0), (1, 2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gama": 2}, r"here: unknown key 'gama'\. Did you mean 'gamma'\? Known keys: gamma, name"),
        ({}, "here: key 'gamma' is missing"),
        ({"gamma": "two"}, r"here\.gamma: expected int, got 'two' \(str\)"),
        ({"gamma": 1, "inner": {"rat": 1}}, r"here\.inner: unknown key 'rat'"),
        ({"gamma": 1, "inner": {"rate": float("nan")}}, r"here\.inner\.rate: expected a finite number, got nan"),
        ({"gamma": 1, "sizes": [1, "2"]}, r"here\.sizes\[1\]: expected int"),
        ([], "here: expected a mapping"),
    ],
)
def test_parse_config_names_key_and_place(values, message):
    with pytest.raises(ValueError, match=message):
        parse_config(Outer, values, "here")


@dataclass(frozen=True)
class Constrained(Checked):
    gamma: Count = 1
    epsilon: Probability = 0.5
    kind: Annotated[str, one_of("chain", "tree")] = "chain"
    limit: Count | None = None
    sizes: Annotated[tuple[Count, ...], not_empty, ascending] = (1, 2)
    pair: Annotated[tuple[int, ...], of_length(2)] = (0, 0)
    rates: Mapping[str, Probability] | None = None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": 0}, r"^gamma must be >= 1, got 0\.$"),
        ({"epsilon": 1.5}, r"epsilon must be <= 1, got 1\.5"),
        ({"kind": "bush"}, "kind must be one of chain, tree, got 'bush'"),
        ({"sizes": ()}, "sizes must name at least one"),
        ({"sizes": (0, 1)}, r"sizes\[0\] must be >= 1, got 0"),
        ({"pair": (1,)}, "pair must have 2 entries"),
        ({"rates": {"a": 2.0}}, r"rates\[a\] must be <= 1, got 2\.0"),
    ],
)
def test_constraints_hold_however_an_object_is_made(values, message):
    with pytest.raises(ValueError, match=message):
        Constrained(**values)
    with pytest.raises(ValueError, match=message):
        replace(Constrained(), **values)


def test_constraints_are_named_with_their_place():
    with pytest.raises(ValueError, match=r"^here: gamma must be >= 1, got 0\.$"):
        parse_config(Constrained, {"gamma": 0}, "here")


def test_values_within_their_constraints_are_taken():
    made = Constrained(2, 1.0, "tree", 3, (1, 5), (0, -1), {"a": 0.0})
    values = {
        "gamma": 2,
        "epsilon": 1,
        "kind": "tree",
        "limit": 3,
        "sizes": [1, 5],
        "pair": [0, -1],
        "rates": {"a": 0.0},
    }
    assert parse_config(Constrained, values, "here") == made
    assert Constrained() == parse_config(Constrained, {"limit": None, "rates": None}, "here")


def test_metrics_by_hand():
    rounds = [
        RoundRecord(drafted=4, accepted=4, emitted=5, rolled_back=0),
        RoundRecord(drafted=4, accepted=1, emitted=2, rolled_back=3),
        RoundRecord(drafted=2, accepted=0, emitted=1, rolled_back=2),
    ]
    assert block_efficiency(rounds) == pytest.approx(8 / 3)
    assert mean_accepted_length(rounds, include_correction=False) == pytest.approx(5 / 3)
    assert mean_accepted_length(rounds, include_correction=True) == pytest.approx(8 / 3)
    continuous = [replace(rounds[0], ends_segment=False), *rounds[1:]]
    assert mean_accepted_length(continuous, include_correction=False) == pytest.approx(5 / 2)


def spec(name, gamma=4):
    return FeatureSpec(name, (3, 4), hidden_size=2, embedding_size=3, gamma=gamma)


def test_state_vector_is_layers_then_embedding_in_float16():
    state = state_vector(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0, 7.0]))
    assert state.tolist() == [1, 2, 3, 4, 5, 6, 7] and state.dtype == torch.float16


def test_assemble_extended_scalars():
    rows = assemble(
        spec("extended"),
        torch.zeros(6, 7, dtype=torch.float16),
        previous_drafted_B=torch.tensor([-1, 8, 8, 4, 0, 2]),
        previous_accepted_B=torch.tensor([-1, 6, 0, 1, 0, 2]),
        first_confidence_B=torch.tensor([0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        first_entropy_B=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    )
    scalars = rows[:, 7:].tolist()
    assert scalars[0] == pytest.approx([1, 0, 0, 0, 0.5, 1])
    assert scalars[1] == pytest.approx([0, 1, 0, 1, 0.6, 2])  # 6 of 8 accepted counts as all of γ = 4
    assert scalars[2] == pytest.approx([0, 0, 1, 0, 0.7, 3])
    assert scalars[3] == pytest.approx([0, 0.25, 0, 0, 0.8, 4])
    assert scalars[4] == pytest.approx([1, 0, 0, 0, 0.9, 5])  # nothing drafted says nothing
    assert scalars[5] == pytest.approx([1, 0, 0, 0, 1, 6])  # 2 of 2 accepted, the draft cut by choice: unknown


def test_feature_sets():
    assert spec("paper").decides_before_drafting and not spec("extended").decides_before_drafting
    assert spec("paper").state_size == 7 and spec("paper").scalars == ()


def test_reduction_standardises_and_projects():
    network = HRADNetwork(state_size=3, num_scalars=1, reduced_size=2)
    reduction = network.reduction
    reduction.mean.copy_(torch.tensor([1.0, 1.0, 1.0, 2.0]))
    reduction.scale.copy_(torch.tensor([2.0, 2.0, 2.0, 4.0]))
    reduction.components.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]))
    reduction.component_scale.copy_(torch.tensor([1.0, 2.0]))
    reduced = reduction(torch.tensor([[3.0, 5.0, 7.0, 10.0]]))
    assert reduced.tolist() == [[1.0, 2.5, 2.0]]
    assert float(squared_distance(reduced)) == pytest.approx((1 + 6.25 + 4) / 3)
    assert network.eval()(torch.zeros(5, 4)).shape == (5, 3)


def test_calibration_by_hand():
    probabilities = Calibration(2.0, (0.0, 1.0, 0.0)).probabilities(torch.tensor([[2.0, 0.0, -2.0]]))
    assert probabilities[0].tolist() == pytest.approx(torch.tensor([1.0, 1.0, -1.0]).softmax(0).tolist())


IDENTITY = Identity(ModelIdentity("a", (1.0, 2.0)), ModelIdentity("b", (3.0,)), None, "t", (1, 2))


def test_contract_round_trip():
    contract = CaptureContract(IDENTITY, ServingRange("float32", ((0.0, 0.0, 1.0),), 5, 50), {"torch": "2"})
    assert CaptureContract.from_json(contract.to_json(), "here") == contract
    with pytest.raises(ContractError, match="unknown key 'layers'"):
        CaptureContract.from_json({**contract.to_json(), "layers": 1}, "here")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layer_ids": (2, 3)}, "layer_ids"),
        ({"last_layer_post_norm": False}, "last_layer_post_norm"),
        ({"tokenizer_hash": "x"}, "tokenizer_hash was unknown"),
        ({"chat_template_hash": None}, "chat_template_hash was 't' .* unknown now"),
        ({"target": ModelIdentity("a", (1.0, 2.1))}, r"target\.weights"),
        ({"target": ModelIdentity("c", (1.0, 2.0))}, r"target\.config_hash was 'a'"),
        ({"schema_version": 2}, "schema_version was 1 .* 2 now"),
    ],
)
def test_every_identity_field_is_compared(change, field):
    with pytest.raises(ContractError, match=f"thing does not belong here: {field}.*Do this."):
        require_same_identity(IDENTITY, replace(IDENTITY, **change), "thing", "Do this.")


def test_weights_survive_rounding():
    nearly = replace(IDENTITY, target=ModelIdentity("a", (1.001, 2.001)))
    require_same_identity(IDENTITY, nearly, "thing", "")
