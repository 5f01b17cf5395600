"""The single-model loop: one pass over the newest token, what earlier passes guessed would follow it, and the guesses that grow.

    pass     [newest ; candidates ; guesses]: two trees under the newest token that do not see each other
    verify   the candidates, a deterministic tree, by rule ``match``: draw from the target, follow the token if it is there
    learn    the guesses grow by what the pass predicts after them

Candidates are a function of earlier passes. Shape suffixes: M rows of a pass, V vocabulary.
"""

from dataclasses import replace

from torch import Tensor

from predictors.controllers import build_controller
from predictors.rounds import RoundRecord
from runtime.decoding.base import Decoder, Evidence, Step
from runtime.decoding.run import Run
from runtime.laws import processed_law
from runtime.pair import ModelPair
from runtime.randomness import stream
from runtime.request import Request
from runtime.self_drafting.guesses import NO_ROWS, Guesser, GuessRows, PassOutcome, levels
from runtime.tree import TokenTree
from runtime.verification import VERIFIERS
from runtime.verification.outcome import greedy_path, likeliest


class SingleModelDecoder(Decoder):
    """Decodes with the target drafting for itself, by the method of ``guesser``."""

    def __init__(self, pair: ModelPair, guesser: Guesser) -> None:
        super().__init__(pair, build_controller({"kind": "fixed"}))
        self.guesser = guesser

    def _open(self, request: Request) -> "SingleModelRun":
        if request.draft_layers:
            raise ValueError(
                f"draft_layers {request.draft_layers}: the target drafts for itself, and no draft model is there to tap."
            )
        return SingleModelRun(self, request)


class SingleModelRun(Run):
    def __init__(self, decoder: SingleModelDecoder, request: Request) -> None:
        super().__init__(decoder, request)
        self.guesses = decoder.guesser.open(replace(request, randomness=stream(request.randomness, "draft")))

    def round(self) -> Step:
        """Guess and verify in one target pass, commit, learn."""
        newest, root = self.newest, self._root()
        candidates = self.guesses.candidates(newest)
        tree = levels(candidates, self.remaining - 1, self.request.eos_tokens)
        rows, count = self._rows(), 1 + tree.num_nodes
        tokens = [newest, *tree.token_list, *rows.tokens]
        parents = [
            -1,
            *(parent + 1 for parent in tree.parent_list),
            *(count + p if p >= 0 else 0 for p in rows.parents),
        ]
        self.clock.lap("draft")
        out = self.target.forward(tokens, parents)
        self.clock.lap("target")
        settings, observe, logits_MV = self.request.settings, self.request.observe, out.logits[:count]
        read = settings.greedy or self.guesses.reads_predictions
        predicted: list[int] = likeliest(logits_MV).tolist() if read else []
        probs_MV = processed_law(logits_MV, settings) if observe or not settings.greedy else None
        row, token = self._verdict(tree, predicted, probs_MV)
        path = tree.path(row)
        self.target.keep([0, *(node + 1 for node in path)])
        self._move(out, row, token)
        committed = [*(tree.token_list[node] for node in path), token]
        self.clock.lap("verify")
        if rows is not NO_ROWS:
            following = self.guesses.follow(out.logits[count:])
            self.guesses.learn(PassOutcome(newest, candidates, predicted, following, committed))
        self.clock.lap("draft")
        record = RoundRecord(tree.num_nodes, max(tree.depths), guessed=len(rows.tokens), accepted=len(path))
        record.rolled_back = record.levels - record.accepted
        evidence = None
        if observe and probs_MV is not None:
            hidden_MKD = None if out.hidden_NKD is None else out.hidden_NKD[:count]
            evidence = Evidence(root, tree, [], probs_MV, hidden_MKD)
        return Step(committed, record, evidence)

    def _rows(self) -> GuessRows:
        """Return the guesses to feed: none where nothing comes after this pass, or where the context ends before they do."""
        rows = self.guesses.rows()
        room = self.pair.target.context_limit - len(self.text)
        return rows if self.remaining > 1 and rows.depth <= room else NO_ROWS

    def _verdict(self, tree: TokenTree, predicted: list[int], probs_MV: Tensor | None) -> tuple[int, int]:
        """Draw the verdict: the row where the accepted path ends, and the token after it."""
        if self.request.settings.greedy or probs_MV is None:
            return greedy_path(tree, predicted)
        return VERIFIERS["match"].verdict(tree, probs_MV, self.chance)
