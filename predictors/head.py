"""Heads that classify the fate of the next γ drafted tokens: their features, written once for collection, training and decoding,
their network and the rule that decides.

    state    z = concat(h^(-K), …, h^(-1), e)   in R^{K·D + E}        (SpecBranch, section 4; specification 4.1)

``h^(-j)`` is the target's hidden state after layer (last - j + 1) at the row whose logits produced the newest token, the last
one after the final norm; ``e`` is the newest token's input embedding. States are cast to float16 wherever they are used, so
that a served vector equals a stored one bit for bit. The ``paper`` set is the state alone and is known before drafting. The
``extended`` set adds the previous round and the draft's first distribution, which is known before its token is drawn.

    r = (x - μ) / σ,  for states optionally  r = C (x - μ) / σ / s       (C: PCA components, s: their standard deviations)
    logits = W3 relu(W2 relu(W1 r + b1) + b2) + b3                        (256 and 64 hidden units; dropout in training)
    P(c | x) = softmax_c( logits_c / t + b_c ),     b_c = log prior_natural(c) - log prior_training(c)

Balanced training (SMOTE, class weights) makes classes equally frequent for the head; ``b`` takes that back. H-RAD's classes, by
the paper's argmax or by thresholds (a and b unset: the argmax):

    none   if P(none) >= a
    all    else if P(all) >= b
    some   otherwise: draft while max_x q(x) >= ε

The explicit predictor's lengths, A accepted of the next γ tokens, by the most likely one or by what a length n is worth:

    argmax        n = argmax_a P(A = a)                                          (the explicit rule SpecBranch compares with)
    expectation   n = argmax_n E[min(A, n) + 1] / (1 + draft cost · n),          E[min(A, n)] = Σ_{j <= n} P(A >= j)

Shape suffixes: B rows, K layers, D hidden size, E embedding size, S = K·D + E, C scalars, R reduced state size, L classes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from predictors.config import Checked, Count, one_of

if TYPE_CHECKING:  # labels and training read features and know nothing of decoding
    from predictors.signals import NextLaw, Root
from collections.abc import Mapping

from torch import nn

from predictors.config import NotNegative, Positive, Probability, Whole
from predictors.network import Judging, Mlp, Standardised, loaded
from predictors.sampling import SamplingSettings

CLASSES = ("none", "some", "all")  # H-RAD's
PREVIOUS_SCALARS = ("previous_unknown", "previous_accepted_share", "previous_none", "previous_all")
FIRST_LAW_SCALARS = ("first_confidence", "first_entropy")
FEATURE_SETS = {"paper": (), "extended": PREVIOUS_SCALARS + FIRST_LAW_SCALARS}
NONE, SOME, ALL = 0, 1, 2
ARGMAX, EXPECTATION = LENGTH_CHOICES = ("argmax", "expectation")


@dataclass(frozen=True)
class FeatureSpec(Checked):
    """Features that a head reads: set name, tapped layers (Hugging Face ``hidden_states`` numbers), sizes, label γ."""

    feature_set: Annotated[str, one_of(*FEATURE_SETS)]
    layers: tuple[int, ...]
    hidden_size: int
    embedding_size: int
    gamma: Count

    @property
    def state_size(self) -> int:
        return len(self.layers) * self.hidden_size + self.embedding_size

    @property
    def scalars(self) -> tuple[str, ...]:
        return FEATURE_SETS[self.feature_set]

    @property
    def decides_before_drafting(self) -> bool:
        """True if all features are known at the root, without a draft pass."""
        return not set(self.scalars) & set(FIRST_LAW_SCALARS)


def state_vector(hidden_KD: Tensor, embedding_E: Tensor) -> Tensor:
    """Join the state [S] in float16: layers in ascending order, then the embedding."""
    return torch.cat([hidden_KD.reshape(-1), embedding_E]).to(torch.float16)


def served_features(spec: FeatureSpec, root: "Root", law: "NextLaw | None") -> Tensor:
    """Build the row [1, S + C] of a round as it is served; ``law``, the draft's first, is not read by the ``paper`` set."""
    assert root.hidden_KD is not None and root.embedding_E is not None
    state_S = state_vector(root.hidden_KD, root.embedding_E).float()
    previous = root.previous
    drafted, accepted = (-1, 0) if previous is None else (previous.submitted, previous.accepted_in_sequence)
    confidence, entropy = (0.0, 0.0) if law is None else (law.confidence, law.entropy)
    scalars = scalar_features(spec, drafted, accepted, confidence, entropy)
    ones = [  # that a device need not wait for
        scalar.to(state_S).reshape(1) if isinstance(scalar, Tensor) else state_S.new_full((1,), scalar)
        for scalar in scalars
    ]
    return torch.cat([state_S, *ones]).unsqueeze(0)


def assemble(
    spec: FeatureSpec,
    states_BS: Tensor,
    previous_drafted_B: Tensor,
    previous_accepted_B: Tensor,
    first_confidence_B: Tensor,
    first_entropy_B: Tensor,
) -> Tensor:
    """Assemble feature rows [B, S + C] in float32.

    ``previous_drafted_B`` is negative where no round came before. Accepted counts are read up to the label's γ, so that rows
    collected with longer drafts mean the same as served ones. A round whose draft the controller cut short and the target did not
    reject tells nothing about γ tokens: it counts as unknown, like none. The ``paper`` set reads no distribution's scalars.
    """
    first = first_confidence_B.float(), first_entropy_B.float()
    scalars = scalar_features(spec, previous_drafted_B, previous_accepted_B, *first)
    return torch.cat([states_BS.float(), *(scalar.float().unsqueeze(1) for scalar in scalars)], dim=1)


def scalar_features(spec: FeatureSpec, drafted: Any, accepted: Any, confidence: Any, entropy: Any) -> list[Any]:
    """Compute the set's scalars in order, of one row (numbers) or of many (tensors [B]); arguments as in `assemble`."""
    counted = accepted.clamp(0, spec.gamma) if isinstance(accepted, Tensor) else max(0, min(accepted, spec.gamma))
    seen = ((accepted >= 0) & (accepted < drafted)) | (drafted >= spec.gamma)
    columns = {
        "previous_unknown": 1.0 - 1.0 * seen,
        "previous_accepted_share": seen * counted / spec.gamma,
        "previous_none": 1.0 * (seen & (counted == 0)),
        "previous_all": 1.0 * (seen & (counted >= spec.gamma)),
        "first_confidence": confidence,
        "first_entropy": entropy,
    }
    return [columns[name] for name in spec.scalars]


class Reduction(Standardised):
    """Standardisation of all columns and, for the state columns, an optional PCA. Parameters are buffers: never trained."""

    components: Tensor
    component_scale: Tensor

    def __init__(self, state_size: int, num_scalars: int, reduced_size: int | None) -> None:
        super().__init__(state_size + num_scalars)
        self.state_size = state_size
        self.output_size = (reduced_size or state_size) + num_scalars
        self.register_buffer("components", torch.zeros(reduced_size or 0, state_size))
        self.register_buffer("component_scale", torch.ones(reduced_size or 0))

    def reduced(self, features: Tensor) -> Tensor:
        """Reduce raw features [B, S + C] to unit-variance ones [B, R + C]."""
        standard = super().reduced(features)
        if not len(self.components):
            return standard
        state, scalars = standard.split([self.state_size, standard.shape[1] - self.state_size], dim=1)
        return torch.cat([state @ self.components.T / self.component_scale, scalars], dim=1)


class HRADNetwork(Judging):
    """Network of a head: class logits [B, L] of raw features [B, S + C], by reduction and MLP. ``reduced_size=None`` keeps all
    state columns, as the paper's head does; ``num_classes`` by default H-RAD's."""

    def __init__(
        self,
        state_size: int,
        num_scalars: int,
        reduced_size: int | None,
        hidden_sizes: tuple[int, int] = (256, 64),
        dropout: float = 0.4,
        num_classes: int = len(CLASSES),
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.reduction = Reduction(state_size, num_scalars, reduced_size)
        self.head = Mlp((self.reduction.output_size, *hidden_sizes), num_classes, nn.ReLU, dropout)

    def reduced(self, features: Tensor) -> Tensor:
        return self.reduction.reduced(features)

    def outputs(self, reduced: Tensor) -> Tensor:
        return self.head(reduced)


def build_network(spec: FeatureSpec, tensors: Mapping[str, Tensor], source: str) -> HRADNetwork:
    """Build the head with ``tensors`` as weights, in evaluation mode; sizes are read from them and checked against ``spec``."""

    def sized() -> HRADNetwork:
        reduced_size = tensors["reduction.components"].shape[0] or None
        first, second, classes = (len(tensors[f"head.{layer}.weight"]) for layer in (0, 3, 6))
        return HRADNetwork(spec.state_size, len(spec.scalars), reduced_size, (first, second), num_classes=classes)

    return loaded(sized, tensors, f"{source}: the tensors do not fit the card's feature spec")


@dataclass(frozen=True)
class Calibration(Checked):
    """Calibration of class logits: ``temperature`` t > 0 and one ``bias`` per class (by default H-RAD's three)."""

    temperature: Positive = 1.0
    bias: tuple[float, ...] = (0.0, 0.0, 0.0)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrate logits [B, L] to probabilities [B, L]."""
        return torch.softmax(logits / self.temperature + logits.new_tensor(self.bias), dim=-1)


@dataclass(frozen=True)
class DecisionRule(Checked):
    """H-RAD's rule: ``epsilon``, confidence where a soft draft stops; ``none_probability``, ``all_probability``: a and b."""

    epsilon: Probability
    none_probability: float | None = None
    all_probability: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.none_probability is None) != (self.all_probability is None):
            raise ValueError("set both none_probability and all_probability, or neither (argmax).")

    @property
    def settled(self) -> int | None:
        """The decision that no probability could change, so that no head need be run; ``None``: it depends on them."""
        if self.none_probability is None or self.all_probability is None:
            return None
        return SOME if min(self.none_probability, self.all_probability) > 1 else None

    def limits(self, decision: int, gamma: int) -> tuple[int, float | None]:
        """Return the most tokens, of ``gamma``, that a decision allows, and the confidence below which a soft draft stops."""
        return 0 if decision == NONE else gamma, self.epsilon if decision == SOME else None

    @property
    def argmax(self) -> "DecisionRule":
        """The argmax rule with the same soft draft."""
        return DecisionRule(self.epsilon)

    def decisions(self, probabilities_B3: Tensor) -> Tensor:
        """Decide: classes [B] int64 of probabilities [B, 3]."""
        if self.none_probability is None or self.all_probability is None:
            return probabilities_B3.argmax(dim=1)
        soft_or_all = torch.where(probabilities_B3[:, ALL] >= self.all_probability, ALL, SOME)
        return torch.where(probabilities_B3[:, NONE] >= self.none_probability, NONE, soft_or_all)


@dataclass(frozen=True)
class LengthRule(Checked):
    """Rule of the length predictor. ``choice``: ``argmax`` or ``expectation``; ``draft_cost``: a drafted token in target passes.

    Examples
    --------
    >>> law = torch.tensor([[0.5, 0.0, 0.0, 0.5]])  # none or all of three tokens
    >>> [int(LengthRule(choice, draft_cost=0.1).decisions(law)) for choice in LENGTH_CHOICES]
    [0, 3]
    """

    choice: Annotated[str, one_of(*LENGTH_CHOICES)]
    draft_cost: NotNegative

    settled = None  # a length always depends on the probabilities

    def limits(self, decision: int, gamma: int) -> tuple[int, float | None]:
        """Return the most tokens that a decision allows, and no confidence, as nothing is soft."""
        return decision, None

    @property
    def argmax(self) -> "LengthRule":
        """The rule that drafts the most likely length."""
        return LengthRule(ARGMAX, self.draft_cost)

    def decisions(self, probabilities_BL: Tensor) -> Tensor:
        """Decide: tokens to draft [B] int64 of probabilities [B, γ + 1]; of equals the shortest."""
        if self.choice == ARGMAX:
            return probabilities_BL.argmax(dim=1)
        reached_BL = probabilities_BL.flip(1).cumsum(dim=1).flip(1)  # P(A >= j)
        tokens_BL = reached_BL.cumsum(dim=1)  # P(A >= 0) = 1 stands for the token the target adds
        lengths_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        return (tokens_BL / (1 + self.draft_cost * lengths_L)).argmax(dim=1)


@dataclass(frozen=True)
class HeadSetting(Checked):
    """Rules at captured sampling ``settings``: the head's ``calibration`` there, the best static lengths, and the best rules.

    What is retained of a branch that survived costs nothing any more: it has a length and a rule of its own. A rule of ``None``:
    the static length, as no rule pays. ``tried`` and ``tried_retention`` are the best rules, whether they pay or not.
    """

    settings: SamplingSettings
    calibration: Calibration
    static_gamma: Whole
    retained_gamma: Whole
    rule: DecisionRule | LengthRule | None
    retention: DecisionRule | LengthRule | None
    tried: DecisionRule | LengthRule
    tried_retention: DecisionRule | LengthRule

    def static(self, retains: bool) -> int:
        """Return the best static length for drafting, or for what is retained of a branch."""
        return self.retained_gamma if retains else self.static_gamma

    def of(self, retains: bool) -> Any:
        """Return the rule for drafting, or for what is retained of a branch."""
        return self.retention if retains else self.rule
