"""A pair of tiny models, made-up prompts and small shapes, for the stages that measure, and for trials."""

import warnings
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
    files = {"params": folder / "params.yaml", "device": folder / "device.json", "pair_folder": folder / "pair"}
    folders = {name: folder / name for name in ("prompts", "latency", "output")}
    return SimpleNamespace(pair="p", **files, **folders, texts=None, workers=1)


def toy_pair(folder: Path, **options) -> ModelPair:
    """The pair that `toy_bench` wrote below ``folder``."""
    return ModelPair.load(target=str(folder / "pair" / "target"), draft=str(folder / "pair" / "draft"), **options)


def measured(card):
    card["measured_quality"] = {"metrics": {"ece": 0.02}}


def own_documents(count, split):
    """Prompts of alternating slices, each of its own document."""
    return [
        Prompt(**(vars(prompt) | {"document": f"{split}-document-{place}"}))
        for place, prompt in enumerate(toy_prompts(count, split))
    ]


def bench(folder, **section):
    """The arguments of a trial of tiny models: four test documents of two slices, and four of the reserve."""
    args = toy_bench(folder, "trial", {})
    short = {"gammas": [1, 2], "test_prompts": 4, "reserve_prompts": 2, "max_new_tokens": 6, "exactness_prompts": 1}
    gate = {"slice_documents": 2, "min_documents": 2}
    sections = {"trial": {**short, "threads": 1, **section}, "promotion": gate}
    args.params.write_text(yaml.safe_dump({"pairs": {"p": sections}}))
    prompts = [prompt for split in ("validation", "test", "reserve") for prompt in own_documents(4, split)]
    write_prompts(args.prompts / FILE, prompts)
    return args, toy_pair(folder)


def quietly(call, *arguments):
    """Call it without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments)
