"""A pair of tiny models, made-up prompts and small shapes, for the stages that measure."""

from pathlib import Path
from types import SimpleNamespace

import yaml

from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, Prompt, write_prompts
from runtime import ModelPair
from tests.eagle3 import random_drafter, save_drafter
from tests.toys import tiny_llama

CHAIN = {"kind": "chain", "gamma": 3}
IID = {"kind": "delayed_tree", "k": 3, "l1": 0, "l2": 2}
DELAYED = {"kind": "delayed_tree", "k": 2, "l1": 1, "l2": 2}
DISTINCT = {"kind": "multi_candidate", "config": [3, 2]}
SHAPES = [CHAIN, IID, DELAYED, DISTINCT]


def toy_prompts(count: int, split: str = "test", vocabulary: int = 32) -> list[Prompt]:
    """Prompts of 5 tokens and more, two to a document, of alternating slices."""
    tokens = [[(7 * i + j) % vocabulary for j in range(5 + i)] for i in range(count)]
    return [
        Prompt(f"{split}-{i}", f"{split}-document-{i // 2}", "source", ("code", "prose")[i % 2], split, "", row)
        for i, row in enumerate(tokens)
    ]


def toy_bench(
    folder: Path, stage: str, parameters: dict, vocabulary: int = 32, drafter: bool = False
) -> SimpleNamespace:
    """Write a device, a pair, prompts and the parameters of ``stage`` below ``folder``; returns the arguments it is run with.
    ``drafter``: the draft is an EAGLE-3 drafter."""
    target = tiny_llama(vocabulary, seed=0, layers=2)
    target.save_pretrained(folder / "pair" / "target")
    if drafter:
        save_drafter(random_drafter(target), folder / "pair" / "draft")
    else:
        tiny_llama(vocabulary, seed=1, layers=1).save_pretrained(folder / "pair" / "draft")
    models = {name: str(folder / "pair" / name) for name in ("target", "draft")}
    facts = {"pair": "p", **models, "tokenizer": models["target"], "revisions": dict.fromkeys(models)}
    facts |= {"dtype": "float32"}
    write_json(folder / "pair" / "pair.json", facts)
    write_json(folder / "device.json", {"slug": "toy-1c", "cpu": "toy", "cores": 1, "gpus": [], "bfloat16_flags": []})
    prompts = [prompt for split in ("validation", "test") for prompt in toy_prompts(4, split, vocabulary)]
    write_prompts(folder / "prompts" / FILE, prompts)
    (folder / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {stage: parameters}}}))
    return SimpleNamespace(
        pair="p",
        params=folder / "params.yaml",
        device=folder / "device.json",
        pair_folder=folder / "pair",
        prompts=folder / "prompts",
        latency=folder / "latency",
        output=folder / "output",
        texts=None,
        workers=1,
    )


def toy_pair(folder: Path, **options) -> ModelPair:
    """The pair that `toy_bench` wrote below ``folder``."""
    return ModelPair.load(target=str(folder / "pair" / "target"), draft=str(folder / "pair" / "draft"), **options)
