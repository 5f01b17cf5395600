"""The controller interface: decisions within one request, each taken from a type that exposes only what it may depend on."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from predictors.actions import Action
from predictors.bundle import Bundle, CaptureContract
from predictors.rounds import Forecast, RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root, TreeRoot

if TYPE_CHECKING:
    from predictors.latency.profile import LatencyProfile

T = TypeVar("T")
Program = Callable[[], T]


class GraphMaker(Protocol):
    """Maker of graphed programs on ``device``: functions that run again over fixed memory (`runtime.graphs`)."""

    device: torch.device

    def make(self, function: Program[T]) -> Program[T]:
        """Run ``function`` and return what runs it again over the same memory. Programs of one maker run one by one."""
        ...


class Rerun:
    """A function of one tensor that is called over and over: plain calls, or, with a ``maker``, one of its programs for every
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
    """A draft from a lookup: ``looked_up`` tokens of what it found, then ``drawn`` tokens of the draft model. Both are fixed
    before the round draws anything, and nothing stops it on the way."""

    looked_up: int
    drawn: int = 0


class Session:
    """Decisions of a controller within one request. Every hook has a default that never stops: override what it decides.

    A stop decision may be a 0-d bool tensor, which a decoder on an accelerator need not read at once.
    """

    bypassed = False  # whether a learned controller was not run this round
    asked = 0  # queries of its model this round
    forecasts: Sequence[Forecast] = ()  # its model's this round, about a chain

    @property
    def stops(self) -> bool:
        """True if the controller may look at what is drafted; if not, a decoder need not show it."""
        return any(
            getattr(type(self), hook) is not getattr(Session, hook)
            for hook in ("stop_before", "stops_before", "stop_after")
        )

    @property
    def reads_lookup(self) -> bool:
        """True if the controller may read ``root.found``; if not, a decoder need not look anything up."""
        return True

    def source(self, root: Root) -> Sourced | None:
        """Choose how much of ``root.found`` to draft; ``None``: the model's own chain, by `plan` and the stops. Called before
        `plan`, where something was found."""
        return None

    def plan(self, root: Root) -> int | None:
        """Choose the most tokens to draft this round; ``None`` leaves it to the drafter's own cap."""
        return None

    def tree(self, root: TreeRoot) -> Action:
        """Choose the tree to draft, of the controller's ``actions``; called only if it has some."""
        raise NotImplementedError

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        """Decide whether to stop before drawing the next token. The token is not known yet: lossless under any rule."""
        return False

    def stops_before(self, laws: Sequence[NextLaw]) -> list[bool]:
        """Decide `stop_before` at all nodes of a tree's level at once, for a controller that compares them."""
        stops = [self.stop_before(law) for law in laws]
        unread = [stop for stop in stops if isinstance(stop, Tensor)]
        known = iter(torch.stack(unread).tolist() if unread else [])  # one read, where there is something to read
        return [next(known) if isinstance(stop, Tensor) else stop for stop in stops]

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        """Decide whether to stop after the token just drawn, which is kept and verified."""
        return False

    def widths(self, laws: Sequence[NextLaw]) -> list[int] | None:
        """Choose how many candidates of each level of a drafted chain to submit, its own token the first; levels of 0 end it.
        ``laws`` are those that its tokens come from. Called where a chain may have leaves; ``None``: those of the drafter."""
        return None

    def beside(self, root: Root) -> int:
        """Choose how many tokens of ``root.found`` to submit as a path of their own beside the chain. Called where a chain may
        have leaves, once it is drawn and where something was found."""
        return 0

    def branch_count(self, law: NextLaw) -> int | None:
        """Choose how many tokens to try at a branch point, from its distribution; ``None`` leaves it to the decoder."""
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
    reads_views = False  # reads what both models predict at the newest token
    follows_one_draft = False  # hooks take one draft at a time, not several in turn
    horizon: int | None = None  # draft length that its decisions are about, if any
    contract: CaptureContract | None = None  # checked against the pair, if set

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Self:
        """Build from a decoder configuration's ``controller`` entry without its ``kind``."""
        raise NotImplementedError

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Build from an exported bundle. One without a network is its card's ``controller`` settings, made for a pair."""
        controller = cls.from_config(bundle.card.get("controller", {}))
        controller.contract = bundle.contract
        return controller

    def with_epsilon(self, epsilon: float) -> "Controller":
        """Set the soft threshold ε: drafting stops where no token of the draft's distribution has probability ε or more."""
        raise ValueError(f"epsilon={epsilon}: a {self.kind!r} controller has no soft threshold. Leave epsilon out.")

    def at_latency(self, profile: "LatencyProfile", reprice: bool) -> Self:
        """Adapt the controller to a machine of this latency ``profile``: one whose choices follow prices warns where they differ
        from those it was exported with by too much, or, with ``reprice``, takes them over."""
        if reprice:
            return self.repriced(profile)
        doubt = self.doubt(profile)
        if doubt is not None:
            warnings.warn(doubt, stacklevel=2)
        return self

    def repriced(self, profile: "LatencyProfile") -> Self:
        """Choose anew by the prices of ``profile``; `ValueError` where that needs the traces."""
        return self

    def doubt(self, profile: "LatencyProfile") -> str | None:
        """Tell why choices may not pay at the prices of ``profile``; ``None``: they may."""
        return None

    def question_seconds(self, profile: "LatencyProfile") -> float:
        """Price one query of the controller's model on a machine of this latency ``profile``, in seconds; 0 without a model."""
        return 0.0

    def graph_with(self, maker: GraphMaker) -> None:
        """Run the controller's model, if it has one, by programs of ``maker``."""

    def start(self, settings: SamplingSettings) -> Session:
        raise NotImplementedError
