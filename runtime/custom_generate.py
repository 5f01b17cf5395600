"""Use through ``model.generate(..., custom_generate=decoder)``.

Temperature, top-k, top-p, stopping criteria and streamers are honoured; other logits processors, left padding, batches and
anything else that would change the output law silently are refused by name.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import (
    LogitNormalization,
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

REFUSED = (  # settings of other processors; None turns each off
    "repetition_penalty no_repeat_ngram_size encoder_repetition_penalty encoder_no_repeat_ngram_size min_p top_h typical_p "
    "epsilon_cutoff eta_cutoff min_length min_new_tokens bad_words_ids sequence_bias forced_bos_token_id forced_eos_token_id "
    "suppress_tokens begin_suppress_tokens guidance_scale exponential_decay_length_penalty watermarking_config "
    "remove_invalid_values"
)
WARPERS = {TemperatureLogitsWarper: "temperature", TopKLogitsWarper: "top_k", TopPLogitsWarper: "top_p"}


def decode_for_generate(
    decoder: "Decoder",
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList | None,
    stopping_criteria: StoppingCriteriaList | None,
    generation_config: Any,
    model_kwargs: dict[str, Any],
) -> Any:
    """Ids [1, prompt + new], or an output object with ``return_dict_in_generate``."""
    if fault := next(_faults(decoder.pair, model, input_ids, generation_config, model_kwargs), None):
        raise ValueError(fault)
    criteria = stopping_criteria or StoppingCriteriaList()
    options = _sampling_options(logits_processor or [], generation_config, model.generation_config)
    budget = _budget(criteria, generation_config, input_ids.shape[1])
    streamer = _argument_of_generate("streamer")
    sequence, done = input_ids, False
    for step in decoder.stream(input_ids[0], max_new_tokens=budget, **options):
        sequence, done = _append(sequence, step.tokens, criteria, streamer)
        if done:
            break
    if streamer is not None:
        streamer.end()
    return GenerateDecoderOnlyOutput(sequences=sequence) if generation_config.return_dict_in_generate else sequence


def _faults(
    pair: "ModelPair", model: Any, input_ids: Tensor, given: Any, model_kwargs: dict[str, Any]
) -> Iterator[str]:
    """What of a call to ``generate`` with the generation config ``given`` is not supported."""
    if model is not getattr(pair.target, "model", None):
        yield "custom_generate was called on another model than the decoder's target. Call target.generate(...)."
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(given, name, False):
            yield f"{name}=True is not supported: a speculative round has no one tensor per step."
    if (given.num_beams or 1) > 1:
        yield f"num_beams={given.num_beams} is not supported: use num_beams=1."
    drafting = {"assistant_model": _argument_of_generate("assistant_model")}
    drafting |= {name: getattr(given, name, None) for name in ("prompt_lookup_num_tokens", "assistant_early_exit")}
    asked = [name for name, value in drafting.items() if value is not None]
    cache = {"cache_implementation": "dynamic", "use_cache": True}  # what Hugging Face does if nothing is said
    for name, unsaid in cache.items():  # the model's own config may name another one, which is no request
        if getattr(given, name) not in (None, unsaid, getattr(model.generation_config, name)):
            asked.append(name)
    if asked:
        yield f"{', '.join(asked)}: the decoder drafts and keeps a cache of its own. Leave them out."
    if input_ids.shape[0] != 1:
        yield f"batch size {input_ids.shape[0]} is not supported: decode one request at a time."
    attention_mask, past = model_kwargs.get("attention_mask"), model_kwargs.get("past_key_values")
    if attention_mask is not None and not bool(attention_mask.all()):
        yield "left padding is not supported: pass the prompt without padding."
    if past is not None and past.get_seq_length():
        yield "past_key_values with cached tokens is not supported: the decoder keeps a cache of its own."
    positions = model_kwargs.get("position_ids")
    if positions is not None and positions.flatten().tolist() != list(range(input_ids.shape[1])):
        yield "position_ids are not supported: tokens stand at 0, 1, 2, …"
    for name in ("inputs_embeds", "encoder_outputs"):
        if model_kwargs.get(name) is not None:
            yield f"{name} is not supported: pass input_ids alone."


def _argument_of_generate(name: str) -> Any:
    """An argument that was given to the calling ``generate``: ``streamer`` (it already has the prompt), ``assistant_model``.

    ``generate`` drops both for callables (its argument extraction keeps only keywords that ``_sample`` lacks), and ignoring what
    a user gives in silence would be worse than reading the caller's local.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_code.co_name == "generate" and name in frame.f_locals):
        frame = frame.f_back
    return None if frame is None else frame.f_locals[name]


def _append(sequence: Tensor, tokens: list[int], criteria: StoppingCriteriaList, streamer: Any) -> tuple[Tensor, bool]:
    """Append token by token and stop where a criterion says so: a prefix of a lossless sample is lossless."""
    for token in tokens:
        sequence = torch.cat([sequence, sequence.new_tensor([[token]])], dim=1)
        if streamer is not None:
            streamer.put(sequence[:, -1].cpu())
        try:
            done = bool(criteria) and bool(criteria(sequence, None).all())
        except (AttributeError, TypeError) as error:
            error.add_note("Criteria get scores=None here: a speculative round has no one tensor per step.")
            raise
        if done:
            return sequence, True
    return sequence, False


def _sampling_options(given: Any, generation_config: Any, own: Any) -> dict[str, Any]:
    """Our settings for exactly what ``generate`` would apply: temperature, top-k, top-p, each at most once, in this order."""
    processors = [one for one in given if type(one) is not LogitNormalization]  # it changes no distribution
    ends = generation_config.eos_token_id
    options: dict[str, Any] = {"temperature": 1.0, "eos_token_id": () if ends is None else ends}
    order = [type(processor) for processor in processors]
    for kind, processor in zip(order, processors, strict=True):
        if kind not in WARPERS:
            raise ValueError(
                f"logits processor {kind.__name__} is not supported: verification would need it at every drafted position. "
                f"Supported: temperature, top_k, top_p. {_remedy(generation_config, own)}"
            )
        options[WARPERS[kind]] = getattr(processor, WARPERS[kind])
        if getattr(processor, "min_tokens_to_keep", 1) != 1:
            raise ValueError(
                f"{kind.__name__} with min_tokens_to_keep={processor.min_tokens_to_keep} is not supported; use 1."
            )
    if order != [kind for kind in WARPERS if kind in order]:
        names = ", ".join(kind.__name__ for kind in order)
        raise ValueError(
            f"logits processors {names}: only temperature, top_k, top_p, once each and in this order, are supported."
        )
    if not generation_config.do_sample:
        options["temperature"] = 0.0  # none of the three moves the most probable token
    return options


def _remedy(given: Any, own: Any) -> str:
    """Who set what is refused, and what turns it off."""
    values = {name: getattr(given, name, None) for name in REFUSED.split()}
    found = [name for name, one in values.items() if one not in (None, 0) and (type(one), one) != (float, 1.0)]
    if not found:
        return "Leave it out of logits_processor."
    own_ones = [getattr(own, name, None) is not None for name in found]
    who = ["the target's own generation_config"] * any(own_ones) + ["this call"] * (not all(own_ones))
    return f"Set by {' and '.join(who)}: pass {', '.join(f'{name}=None' for name in found)} to turn it off."


def _budget(criteria: StoppingCriteriaList, generation_config: Any, prompt_length: int) -> int:
    lengths = [item.max_length for item in criteria if isinstance(item, MaxLengthCriteria)]
    if not lengths and generation_config.max_length is None:
        raise ValueError("pass max_new_tokens or max_length.")
    return int(min(lengths or [generation_config.max_length])) - prompt_length
