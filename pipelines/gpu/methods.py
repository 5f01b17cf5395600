"""Part ``methods``: every method and preset against plain decoding and against Hugging Face on the same weights, with energy."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig

from pipelines.gpu.bench import Bench, Result, repeated, speeds
from pipelines.gpu.energy import measured_energy
from pipelines.gpu.shapes import Sized
from pipelines.measuring.arms import Arm, Run
from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_PLAIN, PEARL, PLAIN, WITHOUT_HRAD
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, build_decoder
from runtime.causal_model import CausalLanguageModel

HF_COMPILED = "hf_compiled"
METHODS: dict[str, dict[str, Any]] = {
    "confidence-0.4": {"method": "speculative", "drafter": {"kind": "chain", "gamma": 8}, "verifier": "block"}
    | {"controller": {"kind": "confidence", "epsilon": 0.4}},
    "ema": {"method": "speculative", "drafter": {"kind": "chain", "gamma": 8}, "verifier": "block"}
    | {"controller": {"kind": "ema"}},
    "delayed-3.1.3": {"method": "speculative", "drafter": {"kind": "delayed_tree"}, "verifier": "traversal"},
    "multi-candidate": {"method": "speculative", "drafter": {"kind": "multi_candidate"}, "verifier": "nss"},
    "lookahead": {"method": "lookahead"},
    "progressive_tree": {"method": "progressive_tree"},
}
CHAINS, BRANCHES = (2, 4, 6, 8), (4, 8)
WARM_SECONDS, ENERGY_SECONDS = 1.0, 4.0


def chain(gamma: int) -> dict[str, Any]:
    """A static chain."""
    return {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}, "verifier": "block"}


def branches(preset: str, gamma: int, overlap: str) -> dict[str, Any]:
    """A branch-parallel preset."""
    return {"preset": preset, "gamma": gamma, "overlap": overlap}


def methods(bench: Bench, target: Sized, draft: Sized) -> Result:
    """Rows of all our arms, their speeds, and joules per token of four of them."""
    with bench.pair(target, draft) as pair:
        configs = {PLAIN: {"method": "autoregressive"}} | {f"chain-{gamma}": chain(gamma) for gamma in CHAINS} | METHODS
        for preset in (PEARL, WITHOUT_HRAD):
            configs |= {f"{preset}-{gamma}": branches(preset, gamma, bench.overlap) for gamma in BRANCHES}
        decoders = {name: build_decoder(pair, config) for name, config in configs.items()}
        arms = {name: bench.arm(decoder) for name, decoder in decoders.items()}
        rows = bench.race(arms)
        found = speeds(rows, PLAIN)
        return {"speeds": found, "energy": _energy(bench, decoders, found), "rows": rows}


def hugging_face(bench: Bench, target: Sized, draft: Sized, compiled: bool) -> Result:
    """Rows and speeds of Hugging Face's ``generate`` beside our plain decoding at temperature 0."""
    with bench.pair(target, draft) as pair:
        ours = {PLAIN: bench.arm(build_decoder(pair, {"method": "autoregressive"}))}
        rows = bench.race(ours | _hugging_face_arms(bench, pair, compiled), bench.temperatures[:1])
        return {"speeds": speeds(rows, PLAIN), "rows": rows}


def _hugging_face_arms(bench: Bench, pair: ModelPair, compiled: bool) -> dict[str, Arm]:
    """``generate`` over a static cache that it compiles, or as it comes and with the draft as assistant."""
    assert isinstance(pair.target, CausalLanguageModel) and isinstance(pair.draft, CausalLanguageModel)
    target, draft = pair.target.model, pair.draft.model

    def arm(assistant: Any = None, cache: str | None = None) -> Arm:
        def decode(prompt: list[int], settings: SamplingSettings, seed: int) -> Run:
            sampling: dict[str, Any] = {"do_sample": not settings.greedy} | (
                {} if settings.greedy else {"top_k": 0, "top_p": 1.0}
            )
            lengths = {"max_new_tokens": bench.new_tokens, "eos_token_id": None, "pad_token_id": 0}
            config = GenerationConfig(**lengths, **sampling, cache_implementation=cache)
            ids = torch.tensor([prompt], device=bench.device)
            before = copy.deepcopy(draft.generation_config)  # assisted generation writes its schedule there
            torch.manual_seed(seed)
            try:
                mask = torch.ones_like(ids)
                out = target.generate(ids, attention_mask=mask, generation_config=config, assistant_model=assistant)
            finally:
                draft.generation_config = before
            return Run(out[0, len(prompt) :].tolist(), None)

        return decode

    if compiled:
        return {HF_COMPILED: arm(cache="static")}
    return {HF_PLAIN: arm(), HF_ASSISTED: arm(assistant=draft)}


def _energy(bench: Bench, decoders: Mapping[str, Decoder], found: list[Result]) -> list[Result]:
    """Joules per token at temperature 0 of plain decoding, and of the fastest chain and the fastest of either preset."""
    by_arm = {row["arm"]: row["tokens_per_second"] for row in found if row["temperature"] == 0}
    kinds = (CHAIN, PEARL, WITHOUT_HRAD)
    fastest = [max((name for name in decoders if name.startswith(kind)), key=lambda n: by_arm[n]) for kind in kinds]
    measured = []
    for name in (PLAIN, *fastest):
        decode = bench.arm(decoders[name])
        work = partial(decode, bench.trained.prompts[0], SamplingSettings(0.0), 0)
        repeated(work, WARM_SECONDS)
        with measured_energy(bench.device) as energy:
            tokens = repeated(work, ENERGY_SECONDS)
        joules = energy.joules
        measured.append({"arm": name, "joules_per_token": None if joules is None else joules / tokens})
    return measured
