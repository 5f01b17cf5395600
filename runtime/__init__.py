"""The decoding runtime: exact speculative decoding with learned controllers.

Needs torch, transformers and safetensors. Start with `ModelPair`, `build_decoder` and `load_decoder`.
"""

from runtime.build import build_decoder
from runtime.decoding.base import Decoder, Generation, Step
from runtime.load import load_decoder
from runtime.pair import ModelPair
from runtime.randomness import Randomness
from runtime.tree import DraftLaw, TokenTree
from runtime.verification import VERIFIERS

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
