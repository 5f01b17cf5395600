"""Ways for one model to draft for itself, by method name."""

from runtime.self_drafting.guesses import Guesser
from runtime.self_drafting.ngrams import LookaheadConfig, SelfDraftConfig
from runtime.self_drafting.progressive_tree import ProgressiveTreeConfig

GUESSERS: dict[str, type[Guesser]] = {
    "progressive_tree": ProgressiveTreeConfig,
    "lookahead": LookaheadConfig,
    "self_draft": SelfDraftConfig,
}
