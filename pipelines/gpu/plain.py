"""Part ``plain``: the target alone, against what the device can do at most."""

from statistics import median
from time import perf_counter

import torch

from pipelines.gpu.bench import Bench, Result
from pipelines.gpu.shapes import Sized
from runtime import ModelPair, Randomness, build_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.latency.cells import seconds_of, synchronise
from runtime.latency.passes import CommittedState
from runtime.memory import planned_memory, table

PASSES = 30


def plain(bench: Bench, target: Sized) -> Result:
    """Seconds of a token and of a pass alone, the least seconds of that pass, and the memory of a request."""
    with bench.pair(target, None) as pair:
        assert isinstance(pair.target, CausalLanguageModel)
        if bench.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        prompt_tokens = len(bench.trained.prompts[0])
        plan = planned_memory(pair, prompt_tokens, bench.new_tokens)
        print(table(plan), flush=True)
        planned = plan["target"]
        token = _token_seconds(bench, pair)
        peak = torch.cuda.max_memory_allocated() if bench.device.type == "cuda" else None
        context = prompt_tokens + bench.new_tokens // 2
        alone = _pass_seconds(pair, context)
        bound = bench.ceilings.pass_seconds(pair.target.model, 1, context)
        return {
            "parameters": target.parameters,
            "context": context,
            "bound_seconds": bound,
            "pass_seconds": alone,
            "token_seconds": token,
            "share_of_bound": bound / token,
            "outside_passes": 1 - alone / token,
            "memory": {"planned": vars(planned) | {"total": planned.total}, "peak": peak},
        }


def _token_seconds(bench: Bench, pair: ModelPair) -> float:
    """Median over prompts of the seconds of a token behind the first."""
    decoder = build_decoder(pair, {"method": "autoregressive"})
    seconds = []
    for number, prompt in enumerate(bench.trained.prompts[: bench.prompts]):
        steps = decoder.stream(
            prompt, max_new_tokens=bench.new_tokens, temperature=0.0, randomness=Randomness(number), eos_token_id=[]
        )
        next(steps)
        synchronise(bench.device)
        start = perf_counter()
        for _ in steps:
            pass
        synchronise(bench.device)
        if number or bench.prompts == 1:  # the first records the passes
            seconds.append((perf_counter() - start) / (bench.new_tokens - 1))
    return median(seconds)


def _pass_seconds(pair: ModelPair, context: int) -> float:
    state = CommittedState(pair.target, context, 1, torch.Generator().manual_seed(0))
    state.chain(1)
    return median(seconds_of(lambda: state.chain(1), state.device) for _ in range(PASSES))
