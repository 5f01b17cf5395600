"""LOSSY: target-initialised trees with several roots (paper on multi-candidate speculative decoding, "target initialisation").

Instead of emitting the token drawn from the target's law, W distinct ones are drawn and a draft tree grown under each; the root
with the longest accepted subtree is emitted. Tokens with predictable continuations come out too often, at temperature 0 too,
where the second-best token may win. With one root this is the ordinary loop. For comparisons only. Source: specification of
drafting, section 5.4. Shape suffixes: N nodes, V vocabulary.
"""

from torch import Tensor

from predictors.controllers import Controller
from predictors.rounds import RoundRecord
from runtime.adapter import Forward
from runtime.decoding.base import Step
from runtime.decoding.sequential import SequentialDecoder, SequentialRun
from runtime.drafting.sampler import distinct, most_likely, read_rows
from runtime.drafting.trees import MultiCandidateConfig, MultiCandidateDraft
from runtime.laws import processed_law
from runtime.pair import ModelPair
from runtime.request import Request
from runtime.tree import TokenTree
from runtime.verification import Verifier


class TargetRootsDecoder(SequentialDecoder):
    """Lets several tokens of the target compete as roots of drafted trees; refused unless ``lossy``."""

    drafter: MultiCandidateConfig

    def __init__(
        self,
        pair: ModelPair,
        drafter: MultiCandidateConfig,
        verifier: Verifier,
        controller: Controller,
        lossy: bool = False,
    ) -> None:
        if not lossy:
            raise ValueError(
                f"{drafter.target_roots} roots from the target change the output's distribution. Use one root, or say lossy=True."
            )
        super().__init__(pair, drafter, verifier, controller, lossy)
        if controller.layers:
            raise ValueError(
                f"the {controller.kind} controller reads the newest token's state, and several roots have none. Use kind 'fixed'."
            )

    def _open(self, request: Request) -> "TargetRootsRun":
        if request.observe or request.layers:
            raise ValueError("a decoder with several target roots shows no evidence. Observe or tap with one root.")
        return TargetRootsRun(self, request)


class TargetRootsRun(SequentialRun):
    """One request: between rounds ``roots`` compete, and nothing of them is emitted or cached yet."""

    draft: MultiCandidateDraft

    def __init__(self, decoder: TargetRootsDecoder, request: Request) -> None:
        super().__init__(decoder, request)
        self.num_roots = decoder.drafter.target_roots
        self.roots: list[int] = []

    def _begin(self, law_V: Tensor, out: Forward) -> list[int]:
        self.roots = self._draw_roots(law_V, out.logits[-1])
        return []

    def round(self) -> Step:
        """Draft under every root, verify all in one target pass, commit the longest."""
        root = self._root()
        tree = self.draft.draft_under(self.roots, root, self._cap(root), self.session, self.clock)
        logits = self.target.forward(tree.token_list, tree.parent_list).logits
        self.clock.lap("target")
        path, law_V = self._longest(tree, processed_law(logits, self.request.settings))
        tokens = [tree.token_list[node] for node in path]
        drafted = tree.num_nodes - tree.parent_list.count(-1)
        self.target.keep(path)
        self.roots = self._draw_roots(law_V, logits[path[-1]])
        self.clock.lap("verify")
        self.draft.commit(path, tokens, [])
        self.clock.lap("draft")
        return Step(tokens, self._counted(RoundRecord(drafted, max(tree.depths) - 1, accepted=len(path) - 1)))

    def _longest(self, tree: TokenTree, target_probs_NV: Tensor) -> tuple[list[int], Tensor]:
        """The longest of the roots' accepted paths (the first among equals), and the law of the token after it."""
        best: list[int] = []
        law_V = target_probs_NV[0]
        for node in range(tree.parent_list.count(-1)):
            below, nodes = tree.below(node)
            law = self.verify(below, target_probs_NV[[node, *nodes]])
            row = int(self.chance.categorical(law.stop))
            path = [node, *(nodes[place] for place in below.path(row))]
            if len(path) > len(best):
                best, law_V = path, law.residual(row)
        return best, law_V

    def _draw_roots(self, law_V: Tensor, logits_V: Tensor) -> list[int]:
        """Distinct draws from the next token's law; at temperature 0, where it is one-hot, the most likely tokens."""
        if self.request.settings.greedy:
            return read_rows(most_likely(logits_V.unsqueeze(0), self.num_roots))[0]
        return distinct(law_V.unsqueeze(0), self.num_roots, 0, self.chance)[0]
