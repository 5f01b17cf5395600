"""Greedy texts, compared with those of an independent reference: Hugging Face's own forward over the same weights.

In float32 every token is that of Hugging Face's ``generate``: passes over one row and over many round alike often enough. In a
shorter format a text may part from it, and teacher forcing decides: Hugging Face's own forward reads our whole text y at once,
and finds each token, also after the parting, as likely as the likeliest but for rounding.

    max(l_n) - l_n[y_n] <= near_tie * max(|max(l_n)|, |l_n[y_n]|),    l_n: its logits after y_1 .. y_(n-1)

The compact forward is compared in its logits, too (`agreement`), in parts of 1 + |logit|, beside what rounding alone amounts to:
the difference of Hugging Face's logits to its own over the same text in passes of another width.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

import torch
from torch import Tensor
from transformers import AutoConfig

from pipelines.hardware import available_memory
from pipelines.measuring.arms import TimedArm, decoder_arm, hugging_face_arm
from pipelines.measuring.tables import Rows
from pipelines.places import PairLocation
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair
from runtime.adapter import ModelState
from runtime.causal_model import CausalLanguageModel
from runtime.eagle3.checkpoint import drafter_config
from runtime.memory import planned_memory, unloaded_pair
from runtime.request import until_end

GREEDY = SamplingSettings(0.0)
STEPS, CHAINED = 3, 9  # single tokens, and those of one pass over a chain
TREE, PATH = (-1, 0, 0, 1, 1, 2), (0, 2, 5)
LONG = 384  # tokens of the long text, if the model holds as many
WIDTH = 32


def near_tie(dtype: torch.dtype) -> float:
    """The share of the larger logit that two roundings of a number come to: 2^-6 in bfloat16, whose relative step is 2^-8."""
    return 2 * torch.finfo(dtype).eps


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """The first position where two token sequences differ, ``None`` if they are equal."""
    pairs = enumerate(zip_longest(tokens, others))
    return next((position for position, (token, other) in pairs if token != other), None)


def greedy_differences(
    pair: ModelPair, decoders: Mapping[str, Decoder], prompts: Iterable[Sequence[int]], max_new_tokens: int
) -> dict[str, list[int | None]]:
    """Find by decoder where each prompt's greedy text is first not Hugging Face's: where it differs from ``generate``, or in a
    format shorter than float32 where it does and rounding does not explain it."""
    target = pair.target
    assert isinstance(target, CausalLanguageModel)
    reference = hugging_face_arm(target.model, None, max_new_tokens)
    expected = [(list(prompt), reference(list(prompt), GREEDY, 0).tokens) for prompt in prompts]
    arms = {name: decoder_arm(decoder, max_new_tokens) for name, decoder in decoders.items()}

    def difference(prompt: list[int], ours: list[int], theirs: list[int]) -> int | None:
        place = first_difference(ours, theirs)
        strict = place is None or target.dtype is torch.float32
        return place if strict else first_unlikely(target, prompt, ours, max_new_tokens)

    return {
        name: [difference(prompt, decode(prompt, GREEDY, 0).tokens, tokens) for prompt, tokens in expected]
        for name, decode in arms.items()
    }


def exactness_rows(
    pair: ModelPair, prompts: Iterable[Sequence[int]], arms: Mapping[str, TimedArm], max_new_tokens: int
) -> Rows:
    """Make a row for every arm of ours: ``exact_float32``, or of whatever format the ``pair`` has, and every prompt's first
    wrong position."""
    ours = {name: arm.decoder for name, arm in arms.items() if arm.decoder is not None}
    found = greedy_differences(pair, ours, prompts, max_new_tokens)
    return [
        {"arm": name, f"exact_{format_of(pair)}": all(place is None for place in places), "differs": places}
        for name, places in found.items()
    ]


@torch.inference_mode()
def first_unlikely(
    model: CausalLanguageModel, prompt: Sequence[int], tokens: Sequence[int], max_new_tokens: int
) -> int | None:
    """The first of greedy ``tokens`` after ``prompt`` that Hugging Face's own forward finds less likely than another by more than
    rounding, or the position where the text should have ended or gone on; ``None``: it is greedy."""
    text = until_end(tokens, model.eos_tokens)[:max_new_tokens]
    ids = torch.tensor([[*prompt, *text]], device=model.device)
    logits_NV = model.model(input_ids=ids, use_cache=False, logits_to_keep=len(text) + 1).logits[0, :-1].float()
    likeliest_N, ours_N = logits_NV.amax(-1), logits_NV[range(len(text)), text]
    larger_N = torch.maximum(likeliest_N.abs(), ours_N.abs())
    tied = (likeliest_N - ours_N <= near_tie(model.dtype) * larger_N).tolist()  # no NaN is
    ended = len(text) == max_new_tokens or not model.eos_tokens.isdisjoint(text)
    return next((place for place, one in enumerate([*tied, ended and len(text) == len(tokens)]) if not one), None)


def float32_pair(location: PairLocation, prompts: Iterable[Sequence[int]], max_new_tokens: int) -> ModelPair | None:
    """The pair in float32, with whole models; ``None`` where that does not fit what its device has free, or the target is spread
    or quantised."""
    if location.placement.keys() & {"device_map", "quantization"}:
        return None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target, draft = (
        None if path is None else drafter_config(path) or AutoConfig.from_pretrained(path)
        for path in (location.target, location.draft)
    )
    pair = unloaded_pair(torch.float32, target, draft)
    planned = planned_memory(pair, max(map(len, prompts), default=0), max_new_tokens, device.type).values()
    packed = device.type == "cpu"  # and held once more
    needed, free = sum(one.total + packed * one.weights for one in planned), available_memory(device)
    if needed <= free:
        models = location.target, location.draft
        return ModelPair.load(*models, dtype="float32", tokenizer=location.tokenizer, whole=True)
    print(
        f"float32 needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} are free: the served format is audited for near-ties"
    )
    return None


def format_of(pair: ModelPair) -> str:
    """The name of the target's number format."""
    return str(pair.target.dtype).removeprefix("torch.")


def agreement(pair: ModelPair, prompts: Sequence[list[int]]) -> dict[str, dict[str, float]]:
    """Measure for every model that runs by a compact forward how far its logits are from Hugging Face's in float32."""
    return {
        name: forward_agreement(model, prompts)
        for name, model in pair.models.items()
        if isinstance(model, CausalLanguageModel) and model.forward != "hugging_face"
    }


def forward_agreement(model: CausalLanguageModel, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Largest |difference| / (1 + |logit|), ``compact`` and for scale ``rounding``, over ``prompts`` of a float32 ``model``."""
    forwards = [model, CausalLanguageModel(model.model, "hugging_face")]
    limit = min(LONG, model.context_limit // 2)
    compact, rounding = [0.0], [0.0]
    for prompt in prompts:
        long = (list(prompt) * LONG)[:limit]
        room = len(prompt) + STEPS + len(TREE) + CHAINED
        walks = [_walk(forward.open(room), prompt) for forward in forwards]
        ours, theirs = (forward.open(limit).forward(long).logits for forward in forwards)
        compact += [_distance(*reached) for reached in zip(*walks, strict=True)] + [_distance(ours, theirs)]
        rounding.append(_distance(_in_passes(forwards[1].open(limit), long), theirs))
    found = {"compact": compact, "rounding": rounding}
    return {name: float(torch.tensor(distances).max()) for name, distances in found.items()}  # NaN if one is


def _walk(state: ModelState, prompt: Sequence[int]) -> Iterator[Tensor]:
    """Logits of a prompt, steps, a tree and a chain."""
    tokens = [prompt[place % len(prompt)] for place in range(CHAINED)]
    yield state.forward(prompt).logits
    state.keep(range(len(prompt)))
    for token in tokens[:STEPS]:
        yield state.forward([token]).logits
        state.keep([0])
    yield state.forward(tokens[: len(TREE)], TREE).logits
    state.keep(PATH)
    yield state.forward(tokens).logits


def _in_passes(state: ModelState, tokens: Sequence[int]) -> Tensor:
    rows = []
    for first in range(0, len(tokens), WIDTH):
        part = tokens[first : first + WIDTH]
        rows.append(state.forward(part).logits)
        state.keep(range(len(part)))
    return torch.cat(rows)


def _distance(logits: Tensor, reference: Tensor) -> float:
    return float(((logits - reference).abs() / (1 + reference.abs())).max())
