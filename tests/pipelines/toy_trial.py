"""A trial of tiny models: its folders and parameters, and random controllers."""

import warnings

import yaml

from pipelines.prompt_table import FILE, Prompt, write_prompts
from runtime import ModelPair
from tests.pipelines.toy_bench import toy_bench, toy_prompts

RATES = {"autoregressive": 5.0, "chain-2": 9.0, "chain-4": 10.0, "champion": 11.0, "challenger": 12.0}


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
    return args, ModelPair.load(target=str(args.pair_folder / "target"), draft=str(args.pair_folder / "draft"))


def quietly(call, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments)
