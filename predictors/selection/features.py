"""Features of the delayed-tree selector at a root: written once, used by collection, training and decoding.

    state      z = concat(target's hidden states in front of the newest token, the draft's there, the draft's behind it)
    scalars    H(p), H(q), KL(p, q), KL(q, p), ‖p - q‖₁ of both models' laws in front of the newest token, H of the draft's law
               behind it, cached tokens, temperature, top-p

p and q are the processed laws that tokens are drawn from, in nats; a probability below `FLOOR` counts as that much, so that a
divergence is finite. States are float16 wherever they are used. What passes cost is left out: on one machine a function of the
cached tokens, on another far from every training row; it enters where tokens become a choice (`predictors.selection.rule`).
Source: paper 004, appendix E; specification of drafting, section 8.

Shape suffixes: V vocabulary, S state size, C scalars, B rows.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from predictors.actions import Action
from predictors.signals import TreeRoot

SCALARS = (
    "target_entropy",
    "draft_entropy",
    "divergence",
    "reverse_divergence",
    "distance",
    "root_entropy",
    "position",
    "temperature",
    "top_p",
)
FLOOR = 1e-9


@dataclass(frozen=True)
class SelectionSpec:
    """What a selector reads and chooses: tapped ``layers`` of the target and ``draft_layers`` of the draft (Hugging Face
    numbers; none: it reads the scalars alone), their hidden sizes, and ``actions``."""

    layers: tuple[int, ...]
    draft_layers: tuple[int, ...]
    hidden_size: int
    draft_hidden_size: int
    actions: tuple[Action, ...]

    def __post_init__(self) -> None:
        if bool(self.layers) is not bool(self.draft_layers):
            raise ValueError(
                f"a selector reads hidden states of both models or of none, got layers={self.layers} and "
                f"draft_layers={self.draft_layers}."
            )
        if not self.actions:
            raise ValueError("a selector chooses among actions, and there are none.")

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of the state's three parts, if it has them."""
        if not self.layers:
            return ()
        draft = len(self.draft_layers) * self.draft_hidden_size
        return len(self.layers) * self.hidden_size, draft, draft

    def without_states(self) -> "SelectionSpec":
        """The same for a selector that reads the scalars alone."""
        return replace(self, layers=(), draft_layers=())

    @property
    def state_size(self) -> int:
        return sum(self.blocks)

    @property
    def num_scalars(self) -> int:
        return len(SCALARS)


def state_of(root: TreeRoot) -> Tensor:
    """The state [S] in float16, of tapped models."""
    draft_2KD, target_KD = root.models.draft_hidden_2KD, root.root.hidden_KD
    assert target_KD is not None and draft_2KD is not None
    return torch.cat([target_KD.reshape(-1).to(draft_2KD.device), draft_2KD.reshape(-1)]).to(torch.float16)


def scalars_of(root: TreeRoot) -> Tensor:
    """The scalars [C] in float32, in the order of `SCALARS`, where the draft's law is: nothing is read by the host."""
    settings = root.root.settings
    laws_3V = torch.stack([root.models.target_probs_V, root.models.draft_probs_V, root.law.probs_V]).float()
    expected_33 = laws_3V @ laws_3V.clamp(min=FLOOR).log().T  # [i, j]: the log of law j under law i
    own_3, crossed_2 = expected_33.diagonal(), expected_33[:2, :2].flip(1).diagonal()
    distance_1 = (laws_3V[:1] - laws_3V[1:2]).abs().sum(1)
    known = [laws_3V.new_full((1,), value) for value in (root.root.position, settings.temperature, settings.top_p)]
    return torch.cat([-own_3[:2], own_3[:2] - crossed_2, distance_1, -own_3[2:], *known])


def assembled(states: Tensor | None, scalars: Tensor) -> Tensor:
    """Features [..., S + C] in float32 of states [..., S], if they are read, and scalars [..., C]."""
    return scalars if states is None else torch.cat([states.float(), scalars], dim=-1)
