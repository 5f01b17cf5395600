"""The general path: Hugging Face's own forward over a cache with scratch rows. The reference for the compact forward.

Hidden states are tapped by hooks that live only during a pass, and numbered as Hugging Face's ``hidden_states``: i is what
goes into block i, counted from 0, and the last one (i = number of blocks) comes out of the final norm.

`faults` tries whether a model's own forward computes from cache, mask and positions what it computes from the text alone, on
several short texts with one last token:

    spread   how far its logits are from their mean over the texts: what attention makes of a text
    error    how far they are from those of the text alone

A forward is wrong where the median error is beyond a share of the spread and beyond rounding. Shape suffixes: T texts, L tokens,
V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from runtime.adapter import Forward, Scratch
from runtime.compact.forward import farthest
from runtime.device import is_out_of_memory
from runtime.laws import says_something

BLOCKS = ("layers", "h", "blocks")
FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f", "layer_norm")


class HuggingFaceState:
    """`ModelState` with an explicit attention mask and positions; ``capacity`` rows are held at once. ``faults``: why passes
    that need a mask are refused (`ValueError`), over chains (``True``) or over trees."""

    def __init__(
        self, model: PreTrainedModel, capacity: int, layers: tuple[int, ...], faults: Mapping[bool, str] | None = None
    ) -> None:
        self._model = model
        self._faults = faults or {}
        self._last_token = model.config.get_text_config().vocab_size - 1
        self._cache = Cache(layer_class_to_replicate=partial(ScratchLayer, capacity))  # one as a layer first writes
        self._scratch = Scratch()
        self._layers = layers

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        ids = torch.as_tensor(tokens, dtype=torch.int64, device=self._model.device)
        self._scratch.append(len(ids), parents)
        positions = torch.tensor(self._scratch.positions(len(ids)), device=self._model.device)
        ids = ids.clamp(max=self._last_token)  # padding ids a smaller vocabulary lacks
        call: dict[str, Any] = {
            "input_ids": ids.unsqueeze(0),
            "position_ids": positions.unsqueeze(0),
            "attention_mask": self._mask(len(ids)),
            "past_key_values": self._cache,
            "use_cache": True,
            "logits_to_keep": last or 0,
        }
        with _tapped(self._model, self._layers) as states:
            logits = self._model(**call).logits[0]
        lost_N = self._sees_lost(len(ids))[-len(logits) :]
        logits = logits.masked_fill(lost_N.to(logits.device).unsqueeze(1), torch.nan)
        return Forward(logits, torch.stack([states[one] for one in self._layers], dim=1) if self._layers else None)

    @torch.inference_mode()
    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        for layer in self._cache.layers:
            layer.keep(self._scratch.committed, path)
        self._scratch.keep(path, pending)

    def _sees_lost(self, count: int) -> Tensor:
        """Which of the last ``count`` nodes [count] see a row without a state (`runtime.compact.forward.Lost`)."""
        rows = [layer.lost[: layer.length].to(self._model.device) for layer in self._cache.layers]
        lost_T = torch.stack(rows).any(dim=0) if rows else torch.zeros(self._scratch.total, dtype=torch.bool)
        allowed = self._scratch.mask(count, lost_T.device)
        return lost_T.cumsum(0)[-count:] > 0 if allowed is None else (allowed & lost_T).any(dim=1)

    def _mask(self, count: int) -> Tensor | None:
        """The scratch's mask as Hugging Face's attention takes it [1, 1, count, rows]; ``None``: the model's own causal one."""
        allowed = self._scratch.mask(count, self._model.device)
        if allowed is None:
            return None
        if fault := self._faults.get(self._scratch.is_chain):
            raise ValueError(fault)
        if self._model.config._attn_implementation == "sdpa":
            return allowed[None, None]
        open_mask = torch.zeros(allowed.shape, dtype=self._model.dtype, device=allowed.device)
        return open_mask.masked_fill_(~allowed, torch.finfo(self._model.dtype).min)[None, None]


class ScratchLayer(CacheLayerMixin):
    """One layer's keys and values [1, heads, length, head_dim]: committed tokens, then scratch nodes; ``length`` rows are in use.

    Buffers grow by doubling and are written in place. Committing a straight prefix of the scratch moves nothing. ``lost`` [rows]:
    whose keys or values were not finite; they are zeros.
    """

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = key_states.new_empty(*key_states.shape[:2], self.capacity, key_states.shape[3])
        self.values = value_states.new_empty(*value_states.shape[:2], self.capacity, value_states.shape[3])
        self.lost = torch.zeros(self.capacity, dtype=torch.bool, device=key_states.device)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[2]
        if self.length > self.capacity:
            held, lost = (self.keys, self.values), self.lost
            self.capacity = max(self.length, 2 * self.capacity)
            self.lazy_initialization(*held)
            for new, old in zip((self.keys, self.values), held, strict=True):
                new[:, :, :start] = old[:, :, :start]
            self.lost[:start] = lost[:start]
        reach = [torch.linalg.vector_norm(states, torch.inf, dim=(0, 1, 3)) for states in (key_states, value_states)]
        most = farthest(key_states.dtype)
        self.lost[start : self.length] = ~((reach[0] <= most) & reach[1].isfinite())
        self.keys[:, :, start : self.length] = key_states.nan_to_num(0.0, 0.0, 0.0).clamp(-most, most)
        self.values[:, :, start : self.length] = value_states.nan_to_num(0.0, 0.0, 0.0)
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def keep(self, committed: int, scratch_rows: Sequence[int]) -> None:
        """Move ``scratch_rows`` (ascending, counted from ``committed``) behind the committed rows and drop the rest."""
        self.length = committed + len(scratch_rows)
        if list(scratch_rows) == list(range(len(scratch_rows))):
            return
        rows = torch.tensor(scratch_rows, device=self.keys.device) + committed
        for held in (self.keys, self.values):
            held[:, :, committed : self.length] = held[:, :, rows]
        self.lost[committed : self.length] = self.lost[rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def require_layers(model: PreTrainedModel, layers: tuple[int, ...]) -> None:
    """`ValueError` unless ``layers`` ascend and ``model`` has hidden states of these numbers."""
    if not layers:
        return
    if list(layers) != sorted(set(layers)):
        raise ValueError(f"tapped layers must ascend without repeats, got {layers}.")
    blocks, norm = _stack(model)
    if blocks is None or norm is None:
        lacks = f"no {' or '.join(f'.{name}' for name in (BLOCKS if blocks is None else FINAL_NORMS))}"
        raise ValueError(
            f"{type(model).__name__} has {lacks} to tap hidden states from. It decodes by all methods that read none; "
            "traces and learned controllers need a model that has them (Llama, Qwen, GPT-2, …)."
        )
    for layer in layers:
        if not 0 <= layer <= len(blocks):
            raise ValueError(
                f"layer {layer} does not exist: {type(model).__name__} has hidden states 0 to {len(blocks)}."
            )


@contextmanager
def _tapped(model: PreTrainedModel, layers: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
    """The states [nodes, hidden size] by layer, of a pass that is run within the block. Hooks are the model's, so they hear
    other threads' passes, too: only this one's count."""
    states: dict[int, Tensor] = {}  # of the last call: a norm behind the blocks may stand before them, too
    own = get_ident()

    def capture(layer: int, state: Tensor) -> None:
        if get_ident() == own:
            if state.dim() != 3:
                raise ValueError(
                    f"{type(model).__name__} has several hidden states of a token, which cannot be tapped."
                )
            states[layer] = state[0]

    def before(layer: int, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        capture(layer, inputs[0] if inputs else named["hidden_states"])

    def behind(layer: int, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        capture(layer, output)

    with ExitStack() as hooks:
        if layers:
            blocks, norm = _stack(model)
            for layer in layers:
                if layer < len(blocks):
                    hooks.enter_context(
                        blocks[layer].register_forward_pre_hook(partial(before, layer), with_kwargs=True)
                    )
                else:
                    hooks.enter_context(norm.register_forward_hook(partial(behind, layer)))
        yield states


def _stack(model: PreTrainedModel) -> list[Any]:
    """A model's blocks, and the norm behind them; ``None`` for what it lacks."""
    body = model.base_model
    for inner in ("language_model", "decoder"):  # of models that see, too; OPT's
        body = getattr(body, inner, body)
    return [next(filter(None, (getattr(body, name, None) for name in names)), None) for names in (BLOCKS, FINAL_NORMS)]


TEXTS, LENGTH, SIBLINGS = 4, 8, 24  # texts, tokens that they share, nodes between a branch's two tokens
TRIES = 16  # at texts on which all logits are finite
WRONG = 0.25  # of the spread
ROUNDINGS = 8  # of logits in the model's number format


def faults(model: PreTrainedModel) -> dict[bool, str]:
    """Why ``model`` cannot verify chains (``True``) or trees (``False``), where it cannot; `ValueError` where it cannot go on
    from a cache at all."""
    config: Any = model.config.get_text_config()
    generator = torch.Generator().manual_seed(0)
    for _ in range(TRIES):  # some of the model's tokens may lead nowhere
        shared, last, *branches = torch.randint(config.vocab_size, (2 + TEXTS, LENGTH), generator=generator).tolist()
        texts_TL = torch.tensor([[*shared, branch[0], last[0]] for branch in branches], device=model.device)
        with torch.inference_mode():
            right_TV = model(input_ids=texts_TL, use_cache=False).logits[:, -1].double()
        if bool(says_something(right_TV).all()):
            break
    else:  # there is nothing to compare with: where a request needs it, it is refused
        return {}
    siblings = max(SIBLINGS, getattr(config, "window_size", None) or 0)  # beyond a local window of rows

    def state() -> HuggingFaceState:
        made = HuggingFaceState(model, LENGTH + 2 * TEXTS + siblings, ())
        made.forward(shared)
        made.keep(range(LENGTH))
        return made

    def one_by_one() -> Tensor:
        rows, steps = [], state()
        for *_, first, second in texts_TL.tolist():
            steps.forward([first])
            rows.append(steps.forward([second]).logits[-1])
            steps.keep(())
        return torch.stack(rows)

    def chains() -> Tensor:
        rows, steps = [], state()
        for *_, first, second in texts_TL.tolist():
            rows.append(steps.forward([first, second]).logits[-1])
            steps.keep(())
        return torch.stack(rows)

    def tree() -> Tensor:
        tokens = [*texts_TL[:, -2].tolist(), *[last[1]] * siblings, *texts_TL[:, -1].tolist()]
        return state().forward(tokens, [*[-1] * (TEXTS + siblings), *range(TEXTS)]).logits[-TEXTS:]

    with torch.inference_mode():
        name = type(model).__name__
        if fault := _fault(one_by_one, right_TV, model.dtype):
            raise ValueError(
                f"{name} {fault} where it goes on after tokens that were dropped, so the text would not be its own. Use a model "
                "with a cache of keys and values."
            )
        of_chains, of_trees = (_fault(passes, right_TV, model.dtype) for passes in (chains, tree))
    if of_chains:
        told = f"{name} {of_chains} where it verifies several tokens at once: it can only decode alone."
        return {True: told, False: told}
    if of_trees:
        return {False: f"{name} {of_trees} where it runs over a tree. Draft chains, which it verifies exactly."}
    return {}


def _fault(passes: Callable[[], Tensor], right_TV: Tensor, dtype: torch.dtype) -> str | None:
    """What is wrong with logits [T, V], made by ``passes``, of the last token of every text."""
    try:
        made_TV = passes().double()
    except Exception as error:  # its code's own
        if is_out_of_memory(error):
            raise
        return f"fails ({type(error).__name__}: {error})"
    spread = (right_TV - right_TV.mean(dim=0)).norm(dim=-1).median()
    rounding = ROUNDINGS * torch.finfo(dtype).eps * right_TV.norm(dim=-1).median()
    errors = (made_TV - right_TV).norm(dim=-1).median()
    if errors <= torch.maximum(WRONG * spread, rounding):
        return None
    return f"computes other logits (off by {float(errors / spread):.0%} of what its text changes)"
