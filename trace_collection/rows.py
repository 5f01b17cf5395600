"""One row of round traces from a round's evidence (columns: `predictors.schema`).

Shape suffixes: G drafted tokens, V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from predictors.features import state_vector
from predictors.sampling import SamplingSettings
from runtime.decoding.base import Decoder, Evidence, Step
from runtime.randomness import Randomness
from trace_collection.probe import Probe


class Prompt(Protocol):
    """What a collection needs of a prompt (the prompts stage's rows have it)."""

    @property
    def id(self) -> str: ...
    @property
    def document(self) -> str: ...
    @property
    def slice(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...


def one_in(every: int, prompts: Sequence[Prompt]) -> list[Prompt]:
    """One in ``every`` prompts: the first of each split, whose prefixes alternate slices and documents. A stride would keep step
    with them: every third of three alternating slices is one slice."""
    sizes, taken = Counter(prompt.split for prompt in prompts), Counter[str]()
    chosen = []
    for prompt in prompts:
        if taken[prompt.split] * every < sizes[prompt.split]:
            taken[prompt.split] += 1
            chosen.append(prompt)
    return chosen


def collect_rows(
    decoder: Decoder,
    prompt: Prompt,
    settings: SamplingSettings,
    max_new_tokens: int,
    gamma_max: int,
    layers: Sequence[int],
    randomness: Randomness,
) -> list[dict[str, Any]]:
    """Decode ``prompt`` and describe every round after the prefill; of a probed policy, the probed ones."""
    rows: list[dict[str, Any]] = []
    previous: Step | None = None
    steps = decoder.stream(
        prompt.tokens,
        max_new_tokens=max_new_tokens,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        randomness=randomness,
        observe=True,
        layers=layers,
    )
    for index, step in enumerate(steps):
        if previous is not None and (step.record.bypassed or not isinstance(decoder.controller, Probe)):
            rows.append(_row(prompt, settings, index, previous, step, gamma_max))
        previous = step
    return rows


def place_columns(prompt: Prompt, settings: SamplingSettings) -> dict[str, Any]:
    """`PLACE_COLUMNS` of a row."""
    return {
        "prompt_id": prompt.id,
        "document": prompt.document,
        "slice": prompt.slice,
        "split": prompt.split,
        "temperature": settings.temperature,
        "top_k": settings.top_k,
        "top_p": settings.top_p,
        "batch_size": 1,
    }


def _row(
    prompt: Prompt, settings: SamplingSettings, index: int, previous: Step, step: Step, gamma_max: int
) -> dict[str, Any]:
    evidence, record = step.evidence, step.record
    assert evidence is not None and evidence.root.hidden_KD is not None and evidence.root.embedding_E is not None
    state = state_vector(evidence.root.hidden_KD, evidence.root.embedding_E)
    if not bool(torch.isfinite(state).all()):
        raise ValueError(
            f"prompt {prompt.id}: a hidden state of round {index} does not fit float16. Tap other layers (traces.num_layers)."
        )
    return {
        **place_columns(prompt, settings),
        "round": index,
        "position": evidence.root.position,
        "newest_token": previous.tokens[-1],
        "newest_token_source": _source(index, previous),
        "previous_drafted": -1 if index == 1 else previous.record.submitted,
        "previous_accepted": -1 if index == 1 else previous.record.accepted_in_sequence,
        "drafted": record.submitted,
        "accepted": record.accepted_in_sequence,
        "censored": record.submitted < gamma_max,
        **_arrays(evidence, record.accepted_in_sequence, gamma_max),
        "state": state.cpu().numpy(),
    }


def _source(index: int, previous: Step) -> str:
    if index == 1:
        return "prefill"
    if not previous.record.ends_segment:
        return "branch"
    return "bonus" if previous.record.accepted == previous.record.submitted else "correction"


def _arrays(evidence: Evidence, accepted: int, gamma_max: int) -> dict[str, list[Any]]:
    tree, laws = evidence.tree, evidence.draft_laws
    count = tree.num_nodes
    nothing = [float("nan")] * (gamma_max - count)
    overlap: list[float] = []
    acceptance: list[float] = []
    if count:
        assert tree.draft_probs is not None
        target_GV = evidence.target_probs[:count]
        draft_GV = tree.draft_probs[:count].to(target_GV)
        overlap = torch.minimum(draft_GV, target_GV).sum(1).tolist()
        chosen_G1 = tree.tokens.unsqueeze(1).to(target_GV.device)
        ratio_G = target_GV.gather(1, chosen_G1) / draft_GV.gather(1, chosen_G1)
        acceptance = ratio_G.squeeze(1).clamp(max=1).tolist()
    return {
        "tokens": tree.tokens.tolist() + [-1] * (gamma_max - count),
        "confidence": [float(law.confidence) for law in laws] + nothing,
        "entropy": [float(law.entropy) for law in laws] + nothing,
        "overlap": overlap + nothing,
        "acceptance": acceptance + nothing,
        "on_path": [place <= accepted for place in range(count)] + [False] * (gamma_max - count),
    }
