"""Choice of the delayed tree at a root: features, network and rule of the selector, for traces, training and decoding alike.

    state      z = concat(target's hidden states in front of the newest token, the draft's there, the draft's after it)
    scalars    H(p), H(q), KL(p, q), KL(q, p), ‖p - q‖₁ of both models in front of the newest token, H of the draft
               after it, cached tokens, temperature, top-p

p and q are the processed distributions that tokens are drawn from, in nats; a probability below `FLOOR` is raised to it. States
are float16 wherever they are used. What passes cost enters where tokens become a choice.

    r_i = W_i z_i,  i = 1, 2, 3                                         hidden states in front of and after the newest token
    g   = MLP [LN(r_1), LN(r_2), LN(r_3), scalars]                      two hidden layers (512, 32), GELU, dropout
    E_a = exp g_a                                                       expected tokens of a step that drafts action a

z and the scalars are standardised; without tapped states there is no r. The network starts at the training rows' mean E, with
which the rule chooses statically. Trained for throughput, it knows E only up to a factor of each root's.

    surplus     s_a = E_a(x) - κ ρ T_a        a* = argmax s, drafted if s_a* - s_static > margin;  static otherwise
    ratio       s_a = log E_a(x) - log T_a
    static      argmax_a Ē_a / T_a,  ρ = Ē_static / T_static          Ē: mean over the training roots of one sampling setting

Throughput is a ratio of sums over steps, Σ E / Σ T: a step is worth its tokens less what its time would bring elsewhere (renewal
reward). κ says how far the choices are ahead of the static tree. T for ρ is taken at the roots' mean context. Source: paper 004,
Eq. 10 and appendix E; specification of drafting, section 8, where the outputs are logits of a policy.

Shape suffixes: V vocabulary, S state size, C scalars, B rows, W width, N roots, A actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from predictors.actions import Action, Prices
from predictors.config import Checked, one_of
from predictors.network import Mlp, Standardised, loaded
from predictors.sampling import SamplingSettings
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
SURPLUS, RATIO = SCORES = ("surplus", "ratio")
NEVER = 1e9  # a margin that no choice promises


@dataclass(frozen=True)
class SelectionSpec:
    """Features and actions of a selector: tapped ``layers`` of the target and ``draft_layers`` of the draft (Hugging Face
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
        """Return the spec of a selector that reads the scalars alone."""
        return replace(self, layers=(), draft_layers=())

    @property
    def state_size(self) -> int:
        return sum(self.blocks)

    @property
    def num_scalars(self) -> int:
        return len(SCALARS)


def state_of(root: TreeRoot) -> Tensor:
    """Join the state [S] in float16, of tapped models."""
    draft_2KD, target_KD = root.models.draft_hidden_2KD, root.root.hidden_KD
    assert target_KD is not None and draft_2KD is not None
    return torch.cat([target_KD.reshape(-1).to(draft_2KD.device), draft_2KD.reshape(-1)]).to(torch.float16)


def scalars_of(root: TreeRoot) -> Tensor:
    """Compute the scalars [C] in float32, in the order of `SCALARS`, on the draft's device: nothing is read by the host."""
    settings = root.root.settings
    laws_3V = torch.stack([root.models.target_probs_V, root.models.draft_probs_V, root.law.probs_V]).float()
    expected_33 = laws_3V @ laws_3V.clamp(min=FLOOR).log().T  # [i, j]: the mean log of row j under row i
    own_3, crossed_2 = expected_33.diagonal(), expected_33[:2, :2].flip(1).diagonal()
    distance_1 = (laws_3V[:1] - laws_3V[1:2]).abs().sum(1)
    known = [laws_3V.new_full((1,), value) for value in (root.root.position, settings.temperature, settings.top_p)]
    return torch.cat([-own_3[:2], own_3[:2] - crossed_2, distance_1, -own_3[2:], *known])


def assembled(states: Tensor | None, scalars: Tensor) -> Tensor:
    """Join features [..., S + C] in float32 of states [..., S], if they are read, and scalars [..., C]."""
    return scalars if states is None else torch.cat([states.float(), scalars], dim=-1)


class SelectorNetwork(Standardised):
    """Network of a selector: log expected tokens [B, A] of raw rows. Distances, too, are standardised by buffers."""

    centre: Tensor
    spread: Tensor

    def __init__(
        self, spec: SelectionSpec, width: int = 64, hidden_sizes: tuple[int, int] = (512, 32), dropout: float = 0.1
    ) -> None:
        super().__init__(spec.state_size + spec.num_scalars)
        self.blocks, self.num_scalars = spec.blocks, spec.num_scalars
        self.projections = nn.ModuleList(nn.Linear(block, width) for block in spec.blocks)
        self.gain = nn.Parameter(torch.ones(len(spec.blocks), width))  # of the norms, as the offset
        self.offset = nn.Parameter(torch.zeros(len(spec.blocks), width))
        reduced = width * len(spec.blocks) + spec.num_scalars
        self.register_buffer("centre", torch.zeros(reduced))
        self.register_buffer("spread", torch.ones(reduced))
        self.head = Mlp((reduced, *hidden_sizes), len(spec.actions), nn.GELU, dropout)

    def reduced(self, features: Tensor) -> Tensor:
        """Compute r and the scalars [B, 3 W + C] of raw features [B, S + C]."""
        *blocks, scalars = super().reduced(features).split([*self.blocks, self.num_scalars], dim=1)
        projected = (projection(block) for projection, block in zip(self.projections, blocks, strict=True))
        return torch.cat([*projected, scalars], dim=1)

    def measured(self, reduced: Tensor) -> Tensor:
        return (reduced - self.centre) / self.spread

    def outputs(self, reduced: Tensor) -> Tensor:
        """Compute g [B, A]."""
        blocks, scalars = reduced.split([self.gain.numel(), self.num_scalars], dim=1)
        if self.blocks:
            normed = nn.functional.layer_norm(blocks.unflatten(1, self.gain.shape), self.gain.shape[1:])
            blocks = (normed * self.gain + self.offset).flatten(1)
        return self.head(torch.cat([blocks, scalars], dim=1))


def build_selector(spec: SelectionSpec, tensors: Mapping[str, Tensor], source: str) -> SelectorNetwork:
    """Build the network with ``tensors`` as weights, in evaluation mode; sizes are read from them, checked against ``spec``."""

    def sized() -> SelectorNetwork:
        width = tensors["gain"].shape[1]
        return SelectorNetwork(spec, width, (len(tensors["head.0.weight"]), len(tensors["head.3.weight"])))

    return loaded(sized, tensors, f"{source}: the tensors do not fit the card's selection spec")


@dataclass(frozen=True)
class Static:
    """Static choice: the index ``place`` of the best static action, and its tokens per second, ``rate``."""

    place: int
    rate: float


@dataclass(frozen=True)
class Setting:
    """A sampling setting of the training roots, with the mean expected tokens of every action there."""

    temperature: float
    top_k: int
    top_p: float
    context: float  # mean
    efficiency: tuple[float, ...]  # mean expected tokens of a step [A]

    @property
    def sampling(self) -> SamplingSettings:
        return SamplingSettings(self.temperature, self.top_k, self.top_p)

    def static(self, prices: Prices) -> Static:
        """Find the static action argmax_a Ē_a / T_a."""
        rates_A = np.array(self.efficiency) / prices.at(self.context)
        place = int(rates_A.argmax())
        return Static(place, float(rates_A[place]))


@dataclass(frozen=True)
class SelectionRule(Checked):
    """Rule by which a selector's outputs become a choice; see the module's formulas."""

    score: Annotated[str, one_of(*SCORES)]
    rate_factor: float  # κ
    margin: float  # of the score, that a choice must be ahead of the static one; `NEVER`: the network is not run
    max_distance: float  # the largest trusted squared distance of features from the training rows
    settings: tuple[Setting, ...]

    @property
    def asks(self) -> bool:
        """True if any promise can be enough."""
        return self.margin < NEVER

    def static(self, settings: SamplingSettings, prices: Prices) -> Static:
        """Find the best static action at the training roots' setting nearest to ``settings``."""
        return min(self.settings, key=lambda setting: setting.sampling.distance(settings)).static(prices)

    def chosen(
        self, tokens: np.ndarray, seconds: np.ndarray, static: np.ndarray | int, rate: np.ndarray | float
    ) -> np.ndarray:
        """Choose the indices [...] of the actions to draft, from expected tokens and seconds of a step by action [..., A], and
        the index and rate of the static action [...]."""
        if self.score == RATIO:
            scores = np.log(tokens) - np.log(seconds)
        else:
            scores = tokens - self.rate_factor * np.expand_dims(rate, -1) * seconds
        of_static = np.take_along_axis(scores, np.expand_dims(static, -1), axis=-1)[..., 0]
        return np.where(scores.max(axis=-1) - of_static > self.margin, scores.argmax(axis=-1), static)
