"""The decoding runtime: exact speculative decoding with learned controllers.

Needs torch, transformers and safetensors. Start with `ModelPair`, `build_decoder` and `load_decoder`.
"""

from typing import TYPE_CHECKING, Any

from predictors.config import ByName

if TYPE_CHECKING:
    from runtime.build import build_decoder
    from runtime.decoding.base import Decoder, Generation, Step
    from runtime.load import load_decoder
    from runtime.pair import ModelPair
    from runtime.randomness import Randomness
    from runtime.tree import DraftLaw, TokenTree
    from runtime.verification import VERIFIERS

PLACES = {
    "build_decoder": "build.build_decoder",
    "Decoder": "decoding.base.Decoder",
    "Generation": "decoding.base.Generation",
    "Step": "decoding.base.Step",
    "load_decoder": "load.load_decoder",
    "ModelPair": "pair.ModelPair",
    "Randomness": "randomness.Randomness",
    "DraftLaw": "tree.DraftLaw",
    "TokenTree": "tree.TokenTree",
    "VERIFIERS": "verification.VERIFIERS",
}
__all__ = [
    "VERIFIERS",
    "Decoder",
    "DraftLaw",
    "Generation",
    "ModelPair",
    "Randomness",
    "Step",
    "TokenTree",
    "build_decoder",
    "load_decoder",
]


def __getattr__(name: str) -> Any:
    """Import a name of the public interface where it is first asked for."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return ByName(__name__, PLACES)[name]
