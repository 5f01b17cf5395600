"""This runtime as an engine: answers blocks of prompts, JSON lines, as `pipelines.peers` has it.

python -m pipelines.engines.ours '{"models": {"target": FOLDER, "draft": FOLDER}, "dtype": "bfloat16", "threads": 2,
    "arms": {"plain": {"method": "autoregressive"}, "auto": {"bundle": FOLDER}}}'
"""

import json
import sys
from time import perf_counter
from typing import Any

import torch

from runtime import Decoder, ModelPair, Randomness, build_decoder, load_decoder


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    pair = ModelPair.load(**options["models"] | {"device": "cpu", "dtype": options["dtype"]})
    arms = {name: built(pair, config) for name, config in options["arms"].items()}
    print(json.dumps({"versions": {"torch": torch.__version__}, "format": options["dtype"]}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        wanted = zip(asked["prompts"], asked["new_tokens"], strict=True)
        decodes = [decode(arms[asked["arm"]], prompt, new_tokens) for prompt, new_tokens in wanted]
        print(json.dumps({"decodes": decodes}), flush=True)


def built(pair: ModelPair, config: dict[str, Any]) -> Decoder:
    return load_decoder(config["bundle"], pair) if "bundle" in config else build_decoder(pair, config)


def decode(decoder: Decoder, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    tokens: list[int] = []
    emitted: list[int] = []
    first, start = 0.0, perf_counter()
    for step in decoder.stream(prompt, new_tokens, 0.0, randomness=Randomness(0), eos_token_id=[]):
        first = first or perf_counter() - start
        emitted.append(len(step.tokens))
        tokens += step.tokens
    return {"tokens": tokens, "emitted": emitted, "first": first, "seconds": perf_counter() - start}


if __name__ == "__main__":
    main()
