"""The draft's half of a branch-parallel decoder as one object with methods to call, here or in another process."""

from predictors.controllers import Controller
from predictors.signals import Root
from runtime.adapter import LanguageModel
from runtime.branching.config import BranchConfig
from runtime.branching.draft import BranchDraft
from runtime.branching.exchange import Branches, Pending, Verdict
from runtime.clock import Stretch
from runtime.request import Request


class DraftService:
    """Holds the draft model and the controller, and serves one request at a time.

    ``request.randomness`` is the draft's own source; ``request.prompt`` is all that is committed but the newest token.
    """

    def __init__(self, model: LanguageModel, config: BranchConfig, controller: Controller) -> None:
        self._model = model
        self._config = config
        self._controller = controller
        self._draft: BranchDraft | None = None

    def ready(self) -> None:
        """Nothing: an answer says that the model is loaded."""

    def open(self, request: Request) -> list[Stretch]:
        """Begin a request: cache its prompt. An earlier one ends."""
        self._draft = BranchDraft(self._model, self._config, self._controller, request)
        return self._draft.begin(request.prompt)

    def advance(self, verdict: Verdict, root: Root, remaining: int) -> Pending:
        assert self._draft is not None, "a request is opened first"
        return self._draft.advance(verdict, root, remaining)

    def branch(self) -> Branches:
        assert self._draft is not None, "a request is opened first"
        return self._draft.branch()
