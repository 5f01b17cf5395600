"""Where a decoder's draft works: in this thread, in another, or in a process of its own."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from predictors.controllers import Controller
from predictors.signals import Root
from runtime.adapter import LanguageModel
from runtime.branching.draft import BranchConfig, BranchDraft
from runtime.branching.exchange import Branches, Pending, Verdict
from runtime.clock import Stretch
from runtime.compact.state import Sent
from runtime.overlap.executor import Beside, Executor, InTurn, default_threads, draft_stream, torch_threads
from runtime.overlap.process import DraftProcess
from runtime.pair import ModelPair
from runtime.request import Request

ROOM = 1 << 18  # bytes of a message besides laws and prompt: states behind a root, counts
LONGEST_PROMPT = 1 << 18  # tokens, where the models name no limit


class DraftService:
    """The draft's half of a decoder as one object with methods to call, here or in another process: it holds the draft model and
    the controller, and serves one request at a time.

    ``request.randomness`` is the draft's own source; ``request.prompt`` is all that is committed but the newest token.
    """

    def __init__(self, model: LanguageModel, config: BranchConfig, controller: Controller) -> None:
        self._of_decoder = (model, config, controller)
        self._draft: BranchDraft  # of the request that was opened last

    def open(self, request: Request) -> list[Stretch]:
        """Begin a request: cache its prompt. An earlier one ends."""
        self._draft = BranchDraft(*self._of_decoder, request)
        return self._draft.begin(request.prompt)

    def advance(self, verdict: Verdict, root: Root, remaining: int) -> Pending:
        return self._draft.advance(verdict, root, remaining)

    def branch(self) -> Branches:
        return self._draft.branch()


class DraftHost:
    """One decoder's place for its draft. A draft process is started by the first request and serves one request at a time; a
    newer request takes it over."""

    def __init__(self, pair: ModelPair, config: BranchConfig, controller: Controller) -> None:
        assert pair.draft is not None
        self._service = (pair.draft, config, controller)
        device = pair.draft.device
        self.layers = controller.layers  # of the target, that the controller reads
        self.overlap = _resolve(config.overlap, {device.type, pair.target.device.type})
        target, draft = default_threads(torch.get_num_threads())
        self._target_threads = config.target_threads or target
        self._stream = draft_stream(device)  # one for all requests: what a stream has freed no other gets
        self._process: DraftProcess | None = None
        if self.overlap == "processes":
            if device.type != "cpu":
                raise ValueError(
                    f"overlap 'processes' is for CPUs, and the draft is on {device}. Use 'streams' or 'auto'."
                )
            sent = (Sent(pair.draft), config, controller)
            room = slot_bytes(pair.draft, pair.target.vocabulary_size, config.gamma)
            self._process = DraftProcess(DraftService, sent, config.draft_threads or draft, room)
        self._owner: object = None

    @property
    def virtual(self) -> bool:
        """Whether the jobs run one after the other."""
        return self.overlap == "none"

    def begin(self, owner: object) -> Executor:
        """What runs the jobs of a request, ``owner``."""
        self._owner = owner
        if self._process is not None:
            self._process.forget()
            return self._process
        service = DraftService(*self._service)
        return InTurn(service) if self.virtual else Beside(service, self._stream)

    def start(self) -> None:
        """Start the draft process before a request does."""
        if self._process is not None:
            self._process.start()

    def require(self, owner: object) -> None:
        """`RuntimeError` if a newer request than ``owner`` has the draft process."""
        if self._process is not None and self._owner is not owner:
            raise RuntimeError(
                "a newer request took this decoder's draft process, which serves one at a time. To decode several requests in "
                "turns, build a decoder for each, or decode with overlap 'none'."
            )

    def end(self, owner: object, executor: Executor) -> None:
        """The request is over; a process is kept for the next one."""
        if executor is not self._process:
            executor.close()
        if self._owner is owner:
            self._owner = None  # with it goes the memory that its draft held

    def close(self) -> None:
        """End the draft process."""
        if self._process is not None:
            self._process.close()

    def target_threads(self) -> AbstractContextManager[None]:
        """Leave the draft process its cores while the target's side works."""
        return nullcontext() if self._process is None else torch_threads(self._target_threads)


def slot_bytes(model: LanguageModel, vocabulary_size: int, gamma: int) -> int:
    """Room for the largest message: a pending block of ``gamma`` tokens with its laws in their own number format, or a prompt."""
    dtype = torch.promote_types(model.dtype, torch.float32)
    laws = dtype.itemsize * (gamma + 2) * vocabulary_size
    return ROOM + laws + 8 * min(model.context_limit, LONGEST_PROMPT)


def _resolve(overlap: str, device_types: set[str]) -> str:
    if overlap != "auto":
        return overlap
    if device_types != {"cpu"} or sys.platform == "win32":
        return "streams"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return "processes" if cores > 1 else "none"
