"""Whether a model's own forward computes from cache, mask and positions what it computes from the text alone.

Some models hold a state that no cache drops, build a mask of their own, or count distances by rows of the cache. Nothing in their
configuration says so; a few tokens do, once for every model. The same last token stands in several short texts:

    spread   how far its logits are from their mean over the texts: what attention makes of a text
    error    how far they are from those of the text alone

A forward is wrong where the median error is beyond a share of the spread and beyond rounding. Shape suffixes: T texts, L tokens,
V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from runtime.device import is_out_of_memory
from runtime.hugging_face import HuggingFaceState

TEXTS, LENGTH, SIBLINGS = 4, 8, 24  # texts, tokens that they share, nodes between a branch's two tokens
WRONG = 0.25  # of the spread
ROUNDINGS = 8  # of logits in the model's number format


def faults(model: PreTrainedModel) -> dict[bool, str]:
    """Why ``model`` cannot verify chains (``True``) or trees (``False``), where it cannot; `ValueError` where it cannot go on
    from a cache at all."""
    config: Any = model.config.get_text_config()
    generator = torch.Generator().manual_seed(0)
    shared, last, *branches = torch.randint(config.vocab_size, (2 + TEXTS, LENGTH), generator=generator).tolist()
    texts_TL = torch.tensor([[*shared, branch[0], last[0]] for branch in branches], device=model.device)
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
        right_TV = model(input_ids=texts_TL, use_cache=False).logits[:, -1].double()
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
