"""Ways for one model to draft for itself, by method name."""

from predictors.config import ByName

GUESSERS = ByName(
    __name__,
    {
        "progressive_tree": "progressive_tree.ProgressiveTreeConfig",
        "lookahead": "ngrams.LookaheadConfig",
        "self_draft": "ngrams.SelfDraftConfig",
    },
)
