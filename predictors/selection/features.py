"""Features of the delayed-tree selector at a root: written once, used by collection, training and decoding.

    state      z = concat(target's hidden states in front of the newest token, the draft's there, the draft's behind it)
    scalars    H(p), H(q), KL(p, q), KL(q, p), ‖p - q‖₁ of both models' laws in front of the newest token, H of the draft's law
               behind it, cached tokens, temperature, top-p, and log seconds of one draft and one target pass there

p and q are the processed laws that tokens are drawn from, in nats; a probability below `FLOOR` counts as that much, so that a
divergence is finite. What a pass costs depends on the machine and is added where features are assembled, not where they are
captured. States are float16 wherever they are used. Source: paper 004, appendix E; specification of drafting, section 8.

Shape suffixes: V vocabulary, S state size, C captured scalars, B rows, A actions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from predictors.actions import Action
from predictors.signals import TreeRoot

CAPTURED_SCALARS = (
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
COST_SCALARS = ("log_draft_seconds", "log_target_seconds")
FLOOR = 1e-9


@dataclass(frozen=True)
class SelectionSpec:
    """What a selector reads and chooses: tapped ``layers`` of the target and ``draft_layers`` of the draft (Hugging Face
    numbers), their hidden sizes, and ``actions``."""

    layers: tuple[int, ...]
    draft_layers: tuple[int, ...]
    hidden_size: int
    draft_hidden_size: int
    actions: tuple[Action, ...]

    def __post_init__(self) -> None:
        if not self.layers or not self.draft_layers:
            raise ValueError(
                "a selector reads hidden states of both models: layers and draft_layers must not be empty."
            )
        if not self.actions:
            raise ValueError("a selector chooses among actions, and there are none.")

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Sizes of the state's three parts."""
        draft = len(self.draft_layers) * self.draft_hidden_size
        return len(self.layers) * self.hidden_size, draft, draft

    @property
    def state_size(self) -> int:
        return sum(self.blocks)

    @property
    def num_scalars(self) -> int:
        return len(CAPTURED_SCALARS) + len(COST_SCALARS)


def state_of(root: TreeRoot) -> Tensor:
    """The state [S] in float16."""
    assert root.root.hidden_KD is not None
    target = root.root.hidden_KD.reshape(-1).to(root.draft_hidden_2KD.device)
    return torch.cat([target.to(torch.float16), root.draft_hidden_2KD.reshape(-1).to(torch.float16)])


def scalars_of(root: TreeRoot) -> Tensor:
    """The captured scalars [C] in float32, in the order of `CAPTURED_SCALARS`."""
    settings = root.root.settings
    laws_3V = torch.stack([root.target_probs_V, root.draft_probs_V, root.law.probs_V]).float()
    expected_33 = laws_3V @ laws_3V.clamp(min=FLOOR).log().T  # [i, j]: the log of law j under law i
    distance = (laws_3V[0] - laws_3V[1]).abs().sum()
    (own, cross, _), (back, draft_own, _), (_, _, root_own) = expected_33.tolist()
    known = [root.root.position, settings.temperature, settings.top_p]
    return torch.tensor([-own, -draft_own, own - cross, draft_own - back, float(distance), -root_own, *known])


def assembled(states_BS: Tensor, scalars_BC: Tensor, draft_seconds_B: Tensor, target_seconds_B: Tensor) -> Tensor:
    """Feature rows [B, S + scalars] in float32."""
    costs = torch.stack([draft_seconds_B, target_seconds_B], dim=1).log().to(states_BS.device)
    return torch.cat([states_BS.float(), scalars_BC.float(), costs.float()], dim=1)
