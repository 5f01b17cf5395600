"""Feature vectors of the H-RAD head: written once, used by collection, training and decoding.

    state    z = concat(h^(-K), …, h^(-1), e)   in R^{K·D + E}        (SpecBranch, section 4; specification 4.1)

``h^(-j)`` is the target's hidden state after layer (last - j + 1) at the row whose logits produced the newest token, the last
one after the final norm; ``e`` is the newest token's input embedding. States are cast to float16 wherever they are used, so
that a served vector equals a stored one bit for bit.

The ``paper`` set is the state alone and is known before drafting. The ``extended`` set adds the previous round and the
draft's first distribution, which is known before its token is drawn.

Shape suffixes: B rows, K layers, D hidden size, E embedding size, S = K·D + E, C scalars.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from predictors.config import Checked, Count, one_of

if TYPE_CHECKING:  # labels and training read features and know nothing of decoding
    from predictors.signals import NextLaw, Root

PREVIOUS_SCALARS = ("previous_unknown", "previous_accepted_share", "previous_none", "previous_all")
FIRST_LAW_SCALARS = ("first_confidence", "first_entropy")
FEATURE_SETS = {"paper": (), "extended": PREVIOUS_SCALARS + FIRST_LAW_SCALARS}


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
