"""Ways of decoding a prompt with one budget and one token counter: a decoder of ours, or Hugging Face's ``generate``."""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from runtime import Decoder, Randomness
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.request import until_end


@dataclass(frozen=True)
class Run:
    """New ``tokens`` up to and including the first end-of-sequence token; ``rounds`` is ``None`` where unknown; ``virtual``:
    draft and target ran one after the other, and count as if side by side."""

    tokens: list[int]
    rounds: list[RoundRecord] | None
    virtual: bool = False


Arm = Callable[[list[int], SamplingSettings, int], Run]  # (prompt, settings, seed)
Decode = Callable[[], Run]  # of all that is given


def decoder_arm(decoder: Decoder, max_new_tokens: int) -> Arm:
    """One of our decoders as an arm."""

    def decode(prompt: list[int], settings: SamplingSettings, seed: int) -> Run:
        randomness = Randomness(seed)
        out = decoder.generate(prompt, max_new_tokens=max_new_tokens, randomness=randomness, **asdict(settings))
        return Run(out.tokens, out.rounds, virtual)

    virtual = isinstance(decoder, BranchParallelDecoder) and decoder.host.virtual
    return decode


def hugging_face_arm(target: PreTrainedModel, draft: PreTrainedModel | None, max_new_tokens: int, **own: Any) -> Arm:
    """Hugging Face ``generate``, with its ``own`` options by their names there (``prompt_lookup_num_tokens``; over a
    ``cache_implementation`` of ``static`` it compiles); with a ``draft``, assisted generation as it comes, without state from one
    prompt to the next."""

    def decode(prompt: list[int], settings: SamplingSettings, seed: int) -> Run:
        ids = torch.tensor([prompt], device=target.device)
        config = _generation_config(target, settings, max_new_tokens=max_new_tokens, **own)
        options: dict[str, Any] = {} if draft is None else {"assistant_model": draft}
        before = None if draft is None else copy.deepcopy(draft.generation_config)
        torch.manual_seed(seed)
        try:
            out = target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **options)
        finally:
            if draft is not None:
                draft.generation_config = before
        return Run(until_end(out[0, len(prompt) :].tolist(), config.eos_token_id or ()), None)

    return decode


def _generation_config(target: PreTrainedModel, settings: SamplingSettings, **own: Any) -> GenerationConfig:
    """The same sampling, with filters that are off off by name: Hugging Face fills an unset ``top_k`` with 50."""
    eos = getattr(target.generation_config, "eos_token_id", None)
    eos_tokens = [eos] if isinstance(eos, int) else eos
    sampling = {"do_sample": True, **asdict(settings)}
    return GenerationConfig(
        eos_token_id=eos_tokens,
        pad_token_id=eos_tokens[0] if eos_tokens else 0,
        repetition_penalty=1.0,
        **(sampling if not settings.greedy else {"do_sample": False}),
        **own,
    )
