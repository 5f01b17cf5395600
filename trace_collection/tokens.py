"""Collect token traces: what the draft knew in front of and behind every token it drafted, and what became of the token.

Chains of γ_max + 1 tokens are drafted, none cut short by a controller, of which the first γ_max make a row each: the state behind
the last of them is known too. Rows are those of `predictors.schema`; whether a token was ``tested`` depends on those before it,
so training reads tested rows alone, and a replayed stop rule all of them. Source: specification of drafting, section 5.5.

Shape suffixes: G drafted tokens, V vocabulary, K tapped layers, D hidden size, T most likely tokens.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from predictors.contract import CaptureContract
from predictors.sampling import SamplingSettings
from predictors.schema import TOKEN_COLUMNS, TOKEN_TRACES_VERSION
from predictors.stopping.features import StopSpec, draft_state
from runtime import Decoder, ModelPair, Randomness, build_decoder
from runtime.decoding.base import Evidence
from trace_collection.collection import (
    Collection,
    Job,
    Progress,
    Rows,
    capture_contract,
    dtypes,
    hidden_size,
    last_layers,
    require_context,
    require_disk,
    seed_of,
)
from trace_collection.rows import Prompt, one_in, place_columns


@dataclass(frozen=True)
class TokenTraceConfig:
    """How token traces are collected: ``gamma_max`` tokens of every round; one in ``every`` prompts; probabilities of the ``top``
    most likely tokens; ``draft_layers`` last hidden states of the draft (the last one after the final norm)."""

    gamma_max: int = 8
    every: int = 2
    max_new_tokens: int = 48
    temperatures: tuple[float, ...] = (0.0, 1.0)
    top_k: int = 0
    top_p: float = 1.0
    verifier: str = "tokenwise"
    top: int = 10
    draft_layers: int = 1
    prompts_per_shard: int = 64
    threads: int = 2
    seed: int = 0
    max_gigabytes: float = 0.5

    def __post_init__(self) -> None:
        for name in ("gamma_max", "every", "top", "draft_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if self.max_new_tokens < self.gamma_max + 3:
            raise ValueError(
                f"max_new_tokens must be at least gamma_max + 3, got {self.max_new_tokens} and {self.gamma_max}: shorter "
                "continuations hold no round that the budget does not cut."
            )
        if not self.temperatures:
            raise ValueError("temperatures is empty: name at least one.")

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature, self.top_k, self.top_p) for temperature in self.temperatures]


def collect_tokens(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    config: TokenTraceConfig,
    folder: Path,
    progress: Progress,
    code: str = "",
) -> dict[str, int]:
    """Write the shards and the manifest of token traces into ``folder``; arguments and result as `collect`'s."""
    if pair.draft is None:
        raise ValueError("token traces need a draft model; this pair has none.")
    torch.set_num_threads(config.threads)
    prompts = one_in(config.every, prompts)
    spec = StopSpec(last_layers(pair.draft, config.draft_layers), hidden_size(pair.draft), config.top)
    chain = {"kind": "chain", "gamma": config.gamma_max + 1}
    decoder = build_decoder(pair, {"method": "speculative", "drafter": chain, "verifier": config.verifier})
    require_context(decoder.context_limit, prompts, config.max_new_tokens, "traces.tokens.max_new_tokens")
    jobs = [(settings, prompt) for settings in config.settings for prompt in prompts]
    contract = capture_contract(pair, (), prompts, config.settings, config.max_new_tokens)
    collection = _collection(config, spec, contract, dtypes(pair))
    max_rows = len(jobs) * config.max_new_tokens * config.gamma_max  # a round emits at least one token
    bytes_per_row = 2 * 2 * spec.state_size + 4 * config.top + 128
    require_disk(folder, "token traces", max_rows, bytes_per_row, config.max_gigabytes, "traces.tokens")

    def rows_of(job: Job) -> Rows:
        settings, prompt = job
        randomness = Randomness(seed_of(config.seed, prompt.id, settings))
        return _decoded(decoder, prompt, settings, config, spec, randomness)

    return collection.write(folder, jobs, rows_of, progress, code)


def _collection(
    config: TokenTraceConfig, spec: StopSpec, contract: CaptureContract, formats: dict[str, str]
) -> Collection:
    """Columns, and what the manifest says, of token traces."""
    parameters = dataclasses.asdict(config)
    return Collection(
        TOKEN_COLUMNS,
        {"state": spec.state_size, "top": spec.top},
        TOKEN_TRACES_VERSION,
        contract,
        inputs={"config": parameters, "dtypes": formats},
        facts={
            "parameters": parameters,
            "gamma_max": config.gamma_max,
            "stop_spec": dataclasses.asdict(spec),
            "dtypes": formats,
        },
        prompts_per_shard=config.prompts_per_shard,
    )


def _decoded(
    decoder: Decoder,
    prompt: Prompt,
    settings: SamplingSettings,
    config: TokenTraceConfig,
    spec: StopSpec,
    randomness: Randomness,
) -> Rows:
    """Decode ``prompt`` and describe every drafted token of every round after the prefill."""
    options: dict[str, Any] = {"max_new_tokens": config.max_new_tokens, **dataclasses.asdict(settings)}
    steps = decoder.stream(
        prompt.tokens, randomness=randomness, observe=True, draft_layers=spec.draft_layers, **options
    )
    rows: Rows = []
    for number, step in enumerate(steps):
        if number:
            assert step.evidence is not None
            place = {**place_columns(prompt, settings), "round": number}
            tokens = _tokens(step.evidence, step.record.accepted_in_sequence, config.gamma_max, spec)
            rows += [{**place, "position": step.evidence.root.position, **columns} for columns in tokens]
    return rows


def _tokens(evidence: Evidence, accepted: int, gamma_max: int, spec: StopSpec) -> Rows:
    """Columns of a round's tokens, but for the last one if nothing was drafted behind it."""
    laws, tree = evidence.draft_laws, evidence.tree
    count = min(gamma_max, len(laws) - 1)
    if count < 1:
        return []
    target_GV = evidence.target_probs[:count]
    assert tree.draft_probs is not None
    draft_GV = tree.draft_probs[:count].to(target_GV)
    chosen_G1 = tree.tokens[:count].unsqueeze(1).to(target_GV.device)
    drawn_G, wanted_G = draft_GV.gather(1, chosen_G1).squeeze(1), target_GV.gather(1, chosen_G1).squeeze(1)
    overlap_G = torch.minimum(draft_GV, target_GV).sum(1)
    states = [draft_state(law) for law in laws[: count + 1]]
    if not all(bool(torch.isfinite(state).all()) for state in states):
        raise ValueError(
            f"a hidden state of the draft behind position {evidence.root.position} does not fit float16. Tap other layers "
            "(traces.tokens.draft_layers)."
        )
    return [
        {
            "place": place,
            "token": token,
            "tested": place <= accepted,
            "accepted": place < accepted,
            "censored": count < gamma_max,
            "probability": probability,
            "overlap": overlap,
            "acceptance": acceptance,
            "entropy": float(laws[place].entropy),
            "top": laws[place].likeliest(spec.top).cpu().numpy(),
            "before": states[place].cpu().numpy(),
            "behind": states[place + 1].cpu().numpy(),
        }
        for place, (token, probability, overlap, acceptance) in enumerate(
            zip(
                tree.token_list,
                drawn_G.tolist(),
                overlap_G.tolist(),
                (wanted_G / drawn_G).clamp(max=1).tolist(),
                strict=False,
            )
        )
    ]
