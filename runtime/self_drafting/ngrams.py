"""The baselines that remember n-grams: lookahead decoding and Self-Draft.

Lookahead decoding (LADE) has a window of columns, each guessing one token further along its diagonal with every pass.

    level 0      the newest token and W - 1 columns after it, a chain
    level l      W tokens; that of column j follows the tokens of column j on the levels above
    one pass     a token after each column's last one: with the column an N-gram, stored under the column's first token
    then         the window moves up one level and one position along the text

Until its N - 1 levels are full the window grows by one level a pass, and nothing is stored. An end of sequence in the window is
replaced by a token of the prompt. Source: Fu et al., "Break the sequential dependency of LLM inference using lookahead
decoding"; specification of drafting, section 7.6. N-grams that share a beginning are verified as one path of a tree.

Self-Draft has several branches that each begin with a few tokens of the prompt and grow by one token a pass.
A branch is fed as a chain under the newest token; its last L - 1 tokens and the one guessed after them are the L it holds. The
last n tokens of a branch are an n-gram, stored under its first one. Source: Gao et al., "Multi-branch self-drafting for LLM
inference acceleration"; specification of drafting, section 7.7. Without the paper's cache of other texts.
"""

from dataclasses import dataclass
from typing import Annotated

from predictors.config import Checked, Count, above, at_least
from runtime.request import Request
from runtime.self_drafting.guesses import Guesses, GuessRows, NGramPool, PassOutcome, PromptTokens

LONGEST_PREFIX = 2  # of a branch, of the prompt


@dataclass(frozen=True)
class LookaheadConfig(Checked):
    """Lookahead decoding: ``ngram`` N, ``window`` W columns, ``guesses`` G n-grams of a token; a pass feeds (N - 1) W - 1."""

    ngram: Annotated[int, at_least(3)] = 5  # a first token, one to guess from and one guessed
    window: Count = 15
    guesses: Count = 15

    def open(self, request: Request) -> "LookaheadWindow":
        return LookaheadWindow(self, request)


class LookaheadWindow(Guesses):
    """Window and pool of one request. Level 0 is held without its first column, which is the newest token."""

    def __init__(self, config: LookaheadConfig, request: Request) -> None:
        self._config = config
        self._random = PromptTokens(request)
        self._eos_tokens = request.eos_tokens
        self._levels = [self._random.draw(config.window + config.ngram - 3)]
        self._pool: NGramPool = NGramPool(config.guesses)

    def rows(self) -> GuessRows:
        above = self._levels[0]
        tokens, parents = list(above), list(range(-1, len(above) - 1))
        before = list(range(-1, len(above)))  # row of each column's last token
        for level in self._levels[1:]:
            parents += before[: len(level)]
            before = list(range(len(tokens), len(tokens) + len(level)))
            tokens += level
        columns = max(len(above) + 1, len(self._levels[-1]))
        return GuessRows(tokens, parents, columns + len(self._levels) - 2)

    def learn(self, said: PassOutcome) -> None:
        newer = list(said.following[len(said.following) - len(self._levels[-1]) :])
        full = len(self._levels) == self._config.ngram - 1
        if full:
            columns = [[said.newest, *self._levels[0]], *self._levels[1:], newer]
            self._pool.add(zip(*columns, strict=True))
        newer = [self._random.draw(1)[0] if token in self._eos_tokens else token for token in newer]
        if full:
            self._levels = [self._levels[1][1:], *self._levels[2:], newer]
        elif len(self._levels) == 1:  # what followed the second column now stands after the first
            self._levels = [self._levels[0][1:], newer]
        else:
            self._levels = [*(level[1:] for level in self._levels), newer[1:]]


@dataclass(frozen=True)
class SelfDraftConfig(Checked):
    """Self-Draft: ``branches`` of at most ``length`` tokens, whose ``ngram``-grams are kept, ``guesses`` for each first token."""

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
    def __init__(self, config: SelfDraftConfig, request: Request) -> None:
        self._config = config
        self._random = PromptTokens(request)
        self._eos_tokens = request.eos_tokens
        self._branches = [self._prefix() for _ in range(config.branches)]
        self._pool: NGramPool = NGramPool(config.guesses)

    def rows(self) -> GuessRows:
        tokens: list[int] = []
        parents: list[int] = []
        for branch in self._branches:
            parents += [-1, *range(len(tokens), len(tokens) + len(branch) - 1)]
            tokens += branch
        return GuessRows(tokens, parents, max(len(branch) for branch in self._branches))

    def learn(self, said: PassOutcome) -> None:
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
