"""Self-Draft: several branches that each begin with a few tokens of the prompt and grow by one token a pass.

A branch is fed as a chain under the newest token; its last L - 1 tokens and the one guessed behind them are the L it holds. The
last n tokens of a branch are an n-gram, stored under its first one. Source: Gao et al., "Multi-branch self-drafting for LLM
inference acceleration"; specification of drafting, section 7.7. Without the paper's cache of other texts.
"""

from dataclasses import dataclass
from typing import Annotated

from predictors.config import Checked, Count, above, at_least
from runtime.request import Request
from runtime.self_drafting.guesses import Guesses, NGramPool, PromptTokens, Rows, Said

LONGEST_PREFIX = 2


@dataclass(frozen=True)
class SelfDraftConfig(Checked):
    """``branches`` of at most ``length`` tokens, whose ``ngram``-grams are kept, ``guesses`` for each first token."""

    branches: Count = 6
    length: Annotated[int, above(LONGEST_PREFIX)] = 6
    ngram: Annotated[int, at_least(2)] = 4
    guesses: Count = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < self.ngram:
            raise ValueError(f"length must be >= {self.ngram}, got {self.length}.")

    def open(self, request: Request) -> "SelfDraftBranches":
        return SelfDraftBranches(self, request)


class SelfDraftBranches(Guesses):
    """One request's branches and pool."""

    def __init__(self, config: SelfDraftConfig, request: Request) -> None:
        self._config = config
        self._random = PromptTokens(request)
        self._eos_tokens = request.eos_tokens
        self._branches = [self._prefix() for _ in range(config.branches)]
        self._pool: NGramPool = NGramPool(config.guesses)

    def rows(self) -> Rows:
        tokens: list[int] = []
        parents: list[int] = []
        for branch in self._branches:
            parents += [-1, *range(len(tokens), len(tokens) + len(branch) - 1)]
            tokens += branch
        return Rows(tokens, parents, max(len(branch) for branch in self._branches))

    def learn(self, said: Said) -> None:
        ends = [0]
        for branch in self._branches:
            ends.append(ends[-1] + len(branch))
        grown = [[*branch, said.following[end - 1]] for branch, end in zip(self._branches, ends[1:], strict=True)]
        ngram = self._config.ngram
        self._pool.add(branch[-ngram:] for branch in grown if len(branch) >= ngram)
        self._branches = [
            self._prefix() if branch[-1] in self._eos_tokens else branch[-(self._config.length - 1) :]
            for branch in grown
        ]

    def _prefix(self) -> list[int]:
        return self._random.draw(self._random.length(LONGEST_PREFIX))
