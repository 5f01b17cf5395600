"""Thousands of requests over all methods: memory, open files, threads and processes after them are those before.

    python -m tests.runtime.soak

One request in ten is left after its first round, as by a client that hangs up. A round of warm-up (a tenth of the requests) goes
first, as allocators and caches fill. Memory is the resident set of this process and of its children, after collection and trim.
"""

import ctypes
import gc
import random
import sys
import threading

import psutil
from tqdm.auto import tqdm

from runtime import ModelPair, Randomness, build_decoder
from runtime.decoding.base import Decoder
from tests.runtime.test_graphed_decoding import BRANCHES, METHODS
from tests.toys import tiny_llama

CONFIGS = {
    **METHODS,
    **{f"{name}, {how}": config | {"overlap": how} for name, config in BRANCHES.items() for how in ("none", "threads")},
}
REQUESTS = 5000  # after the warm-up
CONTEXT = 64  # tokens of prompt and text together at most
GROWTH = 0.02  # of memory at most
tqdm.monitor_interval = 0  # no thread of its own


def main() -> None:
    pair = ModelPair(*(tiny_llama(seed=seed) for seed in (0, 1)))
    before = held(memory=False)
    decoders = [build_decoder(pair, config) for config in CONFIGS.values()]
    serve(decoders, range(REQUESTS // 10), "warm-up")
    warm = held()
    serve(decoders, range(REQUESTS // 10, REQUESTS // 10 + REQUESTS), "requests")
    after = held()
    wrong = [f"{name}: {warm[name]} before, {after[name]} after" for name in before if after[name] > warm[name]]
    wrong += [f"{name}: {before[name]} at first, {after[name]} after" for name in before if after[name] > before[name]]
    growth = after["memory"] / warm["memory"] - 1
    if growth > GROWTH:
        wrong.append(f"memory grew by {growth:.1%}, and {GROWTH:.0%} is allowed")
    told = ", ".join(f"{after[name]} {name}" for name in before)
    print(
        f"{REQUESTS} requests over {len(decoders)} methods: memory {growth:+.2%} of {warm['memory'] / 1e6:.0f} MB; {told}"
    )
    sys.exit("\n".join(wrong) or None)


def serve(decoders: list[Decoder], numbers: range, name: str) -> None:
    """Decode a request of every number, each by the next decoder, of lengths and settings of its own."""
    for number in tqdm(numbers, name, disable=None):
        luck = random.Random(number)
        prompt = [luck.randrange(32) for _ in range(luck.randint(2, CONTEXT // 2))]
        steps = decoders[number % len(decoders)].stream(
            prompt,
            max_new_tokens=luck.randint(1, CONTEXT - len(prompt)),
            temperature=luck.choice([0.0, 1.0]),
            randomness=Randomness(number),
            eos_token_id=[],
        )
        for _ in steps:
            if number % 10 == 0:
                break
        steps.close()


def held(memory: bool = True) -> dict[str, int]:
    """Files, threads and processes that are there, and bytes of memory."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    this = psutil.Process()
    family = [this, *this.children(recursive=True)]
    counts = {"open files": this.num_fds(), "threads": threading.active_count(), "processes": len(family)}
    return counts | ({"memory": sum(one.memory_info().rss for one in family)} if memory else {})


if __name__ == "__main__":
    main()
