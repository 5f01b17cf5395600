"""Use through ``model.generate(..., custom_generate=decoder)``.

Temperature, top-k, top-p, stopping criteria and streamers are honoured; other logits processors, left padding, batches and
anything else that would change the output law silently are refused by name.
"""

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

if TYPE_CHECKING:
    from runtime.decoding.base import Decoder
    from runtime.pair import ModelPair


def decode_for_generate(
    decoder: "Decoder",
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList | None,
    stopping_criteria: StoppingCriteriaList | None,
    generation_config: Any,
    attention_mask: Tensor | None,
) -> Any:
    """Ids [1, prompt + new], or an output object with ``return_dict_in_generate``."""
    _refuse_other_models(decoder.pair, model)
    _refuse_outputs(generation_config)
    _refuse_batches(input_ids, attention_mask)
    criteria = stopping_criteria or StoppingCriteriaList()
    options = _sampling_options(logits_processor or [], generation_config)
    budget = _budget(criteria, generation_config, input_ids.shape[1])
    streamer = _streamer_of_generate()
    sequence, done = input_ids, False
    for step in decoder.stream(input_ids[0], max_new_tokens=budget, **options):
        sequence, done = _append(sequence, step.tokens, criteria, streamer)
        if done:
            break
    if streamer is not None:
        streamer.end()
    return GenerateDecoderOnlyOutput(sequences=sequence) if generation_config.return_dict_in_generate else sequence


def _streamer_of_generate() -> Any:
    """The ``streamer`` given to the calling ``generate``, which has already put the prompt into it.

    ``generate`` drops it for callables (its argument extraction keeps only keywords that ``_sample`` lacks), and ignoring a
    user's streamer in silence would be worse than reading the caller's local.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_code.co_name == "generate" and "streamer" in frame.f_locals):
        frame = frame.f_back
    return None if frame is None else frame.f_locals["streamer"]


def _append(sequence: Tensor, tokens: list[int], criteria: StoppingCriteriaList, streamer: Any) -> tuple[Tensor, bool]:
    """Append token by token and stop where a criterion says so: a prefix of a lossless sample is lossless."""
    for token in tokens:
        sequence = torch.cat([sequence, sequence.new_tensor([[token]])], dim=1)
        if streamer is not None:
            streamer.put(sequence[:, -1].cpu())
        if criteria and bool(criteria(sequence, None).all()):
            return sequence, True
    return sequence, False


def _sampling_options(processors: Any, generation_config: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "temperature": 1.0 if generation_config.do_sample else 0.0,
        "eos_token_id": () if generation_config.eos_token_id is None else generation_config.eos_token_id,
    }
    for processor in processors:
        if isinstance(processor, TemperatureLogitsWarper):
            options["temperature"] = float(processor.temperature)
        elif isinstance(processor, TopKLogitsWarper):
            options["top_k"] = int(processor.top_k)
        elif isinstance(processor, TopPLogitsWarper):
            options["top_p"] = float(processor.top_p)
        else:
            raise ValueError(
                f"logits processor {type(processor).__name__} is not supported: verification would need its law at every drafted "
                "position. Supported: temperature, top_k, top_p."
            )
    return options


def _refuse_other_models(pair: "ModelPair", model: Any) -> None:
    if model is not getattr(pair.target, "model", None):
        raise ValueError(
            "custom_generate was called on another model than the decoder's target. Call target.generate(...)."
        )


def _refuse_batches(input_ids: Tensor, attention_mask: Tensor | None) -> None:
    if input_ids.shape[0] != 1:
        raise ValueError(f"batch size {input_ids.shape[0]} is not supported: decode one request at a time.")
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("left padding is not supported: pass the prompt without padding.")


def _refuse_outputs(generation_config: Any) -> None:
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(generation_config, name, False):
            raise ValueError(f"{name}=True is not supported: a speculative round has no one tensor per step.")
    if (generation_config.num_beams or 1) > 1:
        raise ValueError(f"num_beams={generation_config.num_beams} is not supported: use num_beams=1.")


def _budget(criteria: StoppingCriteriaList, generation_config: Any, prompt_length: int) -> int:
    lengths = [item.max_length for item in criteria if isinstance(item, MaxLengthCriteria)]
    if not lengths and generation_config.max_length is None:
        raise ValueError("pass max_new_tokens or max_length.")
    return int(min(lengths or [generation_config.max_length])) - prompt_length
