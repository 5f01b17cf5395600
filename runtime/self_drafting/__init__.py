"""Ways for one model to draft for itself, by method name."""

from runtime.self_drafting.guesses import Guesser
from runtime.self_drafting.lookahead import LookaheadConfig
from runtime.self_drafting.progressive_tree import ProgressiveTreeConfig
from runtime.self_drafting.self_draft import SelfDraftConfig

GUESSERS: dict[str, type[Guesser]] = {
    "progressive_tree": ProgressiveTreeConfig,
    "lookahead": LookaheadConfig,
    "self_draft": SelfDraftConfig,
}
