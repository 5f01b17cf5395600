"""The benchmark's arms: ways of decoding one prompt with the same weights, budget and token counter.

autoregressive     the target alone, our loop          hf_generate   the target alone, Hugging Face generate
plain_hf_forward   the same over Hugging Face's forward, where ours is the compact one
chain-γ            static draft length                 hf_assisted   Hugging Face assisted generation, default schedule
confidence-ε, entropy              controllers, drafting at most max γ tokens
hrad, length                       exported bundles, each with the decoder its card describes
preset-γ                           branch-parallel decoding (`pipelines.measuring.branch_arms`)
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from pipelines.measuring.branch_arms import LEARNED, branch_decoders
from pipelines.measuring.names import HF_FORWARD, PLAIN, chain_arm, confidence_arm
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, Randomness, build_decoder, load_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.decoding.branch_parallel import BranchParallelDecoder


@dataclass(frozen=True)
class Run:
    """New ``tokens`` up to and including the first end-of-sequence token; ``rounds`` is ``None`` where unknown; ``virtual``:
    draft and target ran one after the other, and count as if side by side."""

    tokens: list[int]
    rounds: list[RoundRecord] | None
    virtual: bool = False


Arm = Callable[[list[int], SamplingSettings, int], Run]  # (prompt, settings, seed)


def build_decoders(
    pair: ModelPair,
    gammas: Sequence[int],
    epsilons: Sequence[float],
    verifier: str,
    bundles: Mapping[str, Path],
    branch_gammas: Sequence[int] = (),
    draft_stage_gammas: Sequence[int] = (),
) -> dict[str, Decoder]:
    """Our decoders by arm name; ``bundles``: folders of exported bundles by name."""

    def speculative(gamma: int, **controller: object) -> Decoder:
        drafter = {"kind": "chain", "gamma": gamma}
        config = {"method": "speculative", "drafter": drafter, "verifier": verifier, "controller": controller}
        return build_decoder(pair, config)

    longest = max(gammas)
    decoders = {PLAIN: build_decoder(pair, {"method": "autoregressive"})}
    if isinstance(pair.target, CausalLanguageModel) and pair.target.forward != "hugging_face":
        general = ModelPair(pair.target.model, forward="hugging_face")
        decoders[HF_FORWARD] = build_decoder(general, {"method": "autoregressive"})
    decoders |= {chain_arm(gamma): speculative(gamma, kind="fixed") for gamma in gammas}
    decoders |= {confidence_arm(e): speculative(longest, kind="confidence", epsilon=e) for e in epsilons}
    decoders["entropy"] = speculative(longest, kind="entropy")
    decoders |= {name: load_decoder(folder, pair) for name, folder in bundles.items() if name not in LEARNED}
    return decoders | branch_decoders(pair, branch_gammas, draft_stage_gammas, bundles)


def decoder_arm(decoder: Decoder, max_new_tokens: int) -> Arm:
    """One of our decoders as an arm."""

    def decode(prompt: list[int], settings: SamplingSettings, seed: int) -> Run:
        randomness = Randomness(seed)
        out = decoder.generate(prompt, max_new_tokens=max_new_tokens, randomness=randomness, **asdict(settings))
        return Run(out.tokens, out.rounds, virtual)

    virtual = isinstance(decoder, BranchParallelDecoder) and decoder.host.virtual
    return decode


def hugging_face_arm(
    target: PreTrainedModel, draft: PreTrainedModel | None, max_new_tokens: int, lookup_tokens: int | None = None
) -> Arm:
    """Hugging Face ``generate``; with a ``draft``, assisted generation as it comes, without state from one prompt to the next;
    with ``lookup_tokens``, prompt lookup of so many."""

    def decode(prompt: list[int], settings: SamplingSettings, seed: int) -> Run:
        ids = torch.tensor([prompt], device=target.device)
        config = _generation_config(target, settings, max_new_tokens)
        options: dict[str, Any] = {} if draft is None else {"assistant_model": draft}
        if lookup_tokens is not None:
            options["prompt_lookup_num_tokens"] = lookup_tokens
        before = None if draft is None else copy.deepcopy(draft.generation_config)
        torch.manual_seed(seed)
        try:
            out = target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **options)
        finally:
            if draft is not None:
                draft.generation_config = before
        return Run(cut_after(out[0, len(prompt) :].tolist(), config.eos_token_id or ()), None)

    return decode


def timed(arm: Arm, prompt: list[int], settings: SamplingSettings, seed: int) -> tuple[Run, float]:
    """One decode and the seconds it took."""
    start = perf_counter()
    run = arm(prompt, settings, seed)
    return run, perf_counter() - start


def cut_after(tokens: list[int], eos_tokens: Collection[int]) -> list[int]:
    """``tokens`` up to and including the first of ``eos_tokens``: the counter of every arm."""
    ends = [index for index, token in enumerate(tokens) if token in eos_tokens]
    return tokens[: ends[0] + 1] if ends else tokens


def _generation_config(target: PreTrainedModel, settings: SamplingSettings, max_new_tokens: int) -> GenerationConfig:
    """The same sampling, with filters that are off off by name: Hugging Face fills an unset ``top_k`` with 50."""
    eos = getattr(target.generation_config, "eos_token_id", None)
    eos_tokens = [eos] if isinstance(eos, int) else eos
    sampling = {"do_sample": True, **asdict(settings)}
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=eos_tokens,
        pad_token_id=eos_tokens[0] if eos_tokens else 0,
        repetition_penalty=1.0,
        **(sampling if not settings.greedy else {"do_sample": False}),
    )
