"""The controller interface: decisions of one request, taken from types that expose only what they may depend on."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from predictors.actions import Action
from predictors.bundle import Bundle
from predictors.contract import CaptureContract
from predictors.rounds import Forecast, RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root, TreeRoot

if TYPE_CHECKING:
    from predictors.latency.profile import LatencyProfile

T = TypeVar("T")
Program = Callable[[], T]


class GraphMaker(Protocol):
    """How a controller's model may be served on ``device``: by programs over fixed memory (`runtime.graphs`)."""

    device: torch.device

    def make(self, function: Program[T]) -> Program[T]:
        """Run ``function`` and return what runs it again over the same memory. Programs of one maker run one by one."""
        ...


class Rerun:
    """A function of one tensor that is asked over and over: plain calls, or, with a ``maker``, one of its programs for every
    shape, whose result holds until another program runs."""

    def __init__(self, function: Callable[[Tensor], Tensor], maker: GraphMaker | None = None) -> None:
        self._function = function
        self._maker = maker
        self._graphed: dict[torch.Size, tuple[Tensor, Program[Tensor]]] = {}  # a program, and the tensor that it reads

    def __call__(self, given: Tensor) -> Tensor:
        if self._maker is None:
            return self._function(given)
        if given.shape not in self._graphed:
            read = given.clone()
            self._graphed[given.shape] = read, self._maker.make(lambda: self._function(read))
        read, run = self._graphed[given.shape]
        read.copy_(given)
        return run()


@dataclass(frozen=True)
class Sourced:
    """Draft ``looked_up`` tokens of what a lookup found, then draw ``drawn`` tokens of the draft model after them. Both are fixed
    before the round draws anything, and nothing stops it on the way."""

    looked_up: int
    drawn: int = 0


class Session:
    """One request's decisions. Every hook has a default that never stops: override what the controller decides.

    A stop decision may be a 0-d bool tensor, which a decoder on an accelerator need not read at once.
    """

    bypassed = False  # whether a learned controller stood aside this round
    asked = 0  # questions to its model this round
    forecasts: Sequence[Forecast] = ()  # its model's this round, about a chain

    @property
    def stops(self) -> bool:
        """Whether it may look at what is drafted; if not, a decoder need not show it."""
        return any(
            getattr(type(self), hook) is not getattr(Session, hook)
            for hook in ("stop_before", "stops_before", "stop_after")
        )

    @property
    def reads_lookup(self) -> bool:
        """Whether it may read ``root.found``; if not, a decoder need not look anything up."""
        return True

    def source(self, root: Root) -> Sourced | None:
        """What to draft of ``root.found``; ``None``: the model's own chain, by `plan` and the stops. Asked before `plan`, where
        something was found."""
        return None

    def plan(self, root: Root) -> int | None:
        """Most tokens to draft this round; ``None`` leaves it to the drafter's own cap."""
        return None

    def tree(self, root: TreeRoot) -> Action:
        """The tree to draft, of the controller's ``actions``; asked only if it has some."""
        raise NotImplementedError

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        """Whether to stop before drawing the next token. The token is not known yet: lossless under any rule."""
        return False

    def stops_before(self, laws: Sequence[NextLaw]) -> list[bool]:
        """`stop_before` at all nodes of a tree's level at once, for a controller that compares them."""
        stops = [self.stop_before(law) for law in laws]
        unread = [stop for stop in stops if isinstance(stop, Tensor)]
        known = iter(torch.stack(unread).tolist() if unread else [])  # one read, where there is something to read
        return [next(known) if isinstance(stop, Tensor) else stop for stop in stops]

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        """Whether to stop after the token just drawn, which is kept and verified."""
        return False

    def branch_count(self, law: NextLaw) -> int | None:
        """How many tokens to try at a branch point, from its law; ``None`` leaves it to the decoder's own rule."""
        return None

    def end_round(self, outcome: RoundRecord) -> None:
        """Learn from a finished round."""


class Controller:
    """Decides how far to draft. Stateless: `start` gives the state of one request."""

    kind: ClassVar[str]
    layers: tuple[int, ...] = ()  # the target's hidden states that it reads (Hugging Face numbers)
    draft_layers: tuple[int, ...] = ()  # the draft's
    actions: tuple[Action, ...] = ()  # trees it chooses among, if it does, for drafts at the target's temperature …
    verifier: str | None = None  # … and this verifier
    reads_views = False  # asks what both models said at the newest token
    follows_one_draft = False  # hooks take one draft at a time, not several in turn
    horizon: int | None = None  # draft length that its decisions speak of, if any
    contract: CaptureContract | None = None  # checked against the pair, if set

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Self:
        """Build from a decoder configuration's ``controller`` entry without its ``kind``."""
        raise NotImplementedError

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Build from an exported bundle. One that is not learned is its card's ``controller`` settings, made for a pair."""
        controller = cls.from_config(bundle.card.get("controller", {}))
        controller.contract = bundle.contract
        return controller

    def with_epsilon(self, epsilon: float) -> "Controller":
        """The same controller with another soft threshold ε: it stops where the draft's law has no probability of ε or more."""
        raise ValueError(f"epsilon={epsilon}: a {self.kind!r} controller has no soft threshold. Leave epsilon out.")

    def at_latency(self, profile: "LatencyProfile", reprice: bool) -> Self:
        """The controller for a machine of this latency ``profile``: one whose choices follow prices warns where they differ from
        those it was exported with by too much, or, with ``reprice``, takes them over."""
        if reprice:
            return self.repriced(profile)
        doubt = self.doubt(profile)
        if doubt is not None:
            warnings.warn(doubt, stacklevel=2)
        return self

    def repriced(self, profile: "LatencyProfile") -> Self:
        """The same by the prices of ``profile``; `ValueError` where its choices cannot be made anew without the traces."""
        return self

    def doubt(self, profile: "LatencyProfile") -> str | None:
        """Why choices may not pay at the prices of ``profile``; ``None``: they may."""
        return None

    def question_seconds(self, profile: "LatencyProfile") -> float:
        """Seconds of one question to its model on a machine of this latency ``profile``; 0 where there is no model."""
        return 0.0

    def graph_with(self, maker: GraphMaker) -> None:
        """Ask its model, if it has one, by programs of ``maker``."""

    def start(self, settings: SamplingSettings) -> Session:
        raise NotImplementedError
