"""Stage ``drafter``: train an EAGLE-3 drafter for the target, where the pair asks for one.

The target answers the drafter's share of the prompts; its hidden states along them are what the drafter learns from. The result
is an EAGLE-3 folder that vLLM and SGLang read, and ``drafter.json``: what it comes to on validation prompts. An interrupted run
goes on after its last shard of texts and its last epoch. For a pair that has its draft already, or none, nothing is trained.

    draftwright drafter --pair smollm2 data/smollm2/pair data/smollm2/prompts data/smollm2/drafter
"""

import argparse
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import torch

from pipelines.drafter.recipe import DrafterRecipe
from pipelines.outputs import write_json
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.places import read_pair
from pipelines.prompt_table import read_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FACTS = "drafter.json"
LEAST_DEPTH = 7
WORK = "work"  # below the stage's folder, until it is done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("pair_folder", type=Path, help="folder written by the pair stage")
    parser.add_argument("prompts", type=Path, help="folder written by the prompts stage")
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument("--long", action="store_true", help="train for about an hour, by section drafter.long")


def run(args: argparse.Namespace) -> None:
    location = read_pair(args.pair_folder)
    if not location.trains_drafter:
        shutil.rmtree(args.output, ignore_errors=True)
        write_json(args.output / FACTS, {"trained": False})
        print(f"{args.pair} trains no drafter")
        return
    recipe = load_parameters(DrafterRecipe, args.pair, "models.draft", args.params)
    if args.long:
        recipe = replace(recipe, **recipe.long)
    torch.set_num_threads(recipe.threads)
    facts = trained_drafter(args, recipe)
    write_json(args.output / FACTS, facts)
    shutil.rmtree(args.output / WORK)
    agreement = ", ".join(f"{facts['validation'][f'agreement_{depth}']:.2f}" for depth in range(1, 1 + recipe.depths))
    print(f"{args.output}: the likeliest token is the target's at {agreement} of positions, by depth")


def trained_drafter(args: argparse.Namespace, recipe: DrafterRecipe) -> dict[str, Any]:
    """Collect, train, write the folder; what it came to."""
    from safetensors.torch import save_file

    from pipelines.drafter.network import DrafterNetwork
    from pipelines.drafter.texts import collect
    from pipelines.drafter.training import train, vocabulary
    from pipelines.registry.tracking import Tracking
    from runtime import ModelPair
    from runtime.causal_model import CausalLanguageModel
    from runtime.device import native_dtype

    location, seed = read_pair(args.pair_folder), recipe.seed
    pair = ModelPair.load(location.target, tokenizer=location.tokenizer, whole=True, **location.placement)
    target = cast(CausalLanguageModel, pair.target)
    layers = tapped_layers(target.num_layers)
    work, started = args.output / WORK, perf_counter()
    given = {
        split: [prompt.tokens for prompt in read_prompts(args.prompts, split, count)]
        for split, count in (("drafter", recipe.prompts), ("validation", recipe.validation))
    }
    answers = collect(target, given["drafter"], layers, recipe.max_new_tokens, seed, work / "drafter")
    held_out = collect(target, given["validation"], layers, recipe.max_new_tokens, seed, work / "validation", both=True)
    collected = perf_counter() - started
    config = target.model.config.get_text_config()
    ids = vocabulary(answers, min(recipe.vocabulary, config.vocab_size), config.vocab_size)
    embedding, head = (module.weight.detach() for module in (target.model.get_input_embeddings(), target.model.lm_head))
    torch.manual_seed(seed)
    network = DrafterNetwork(layer_config(config), ids, len(layers), embedding, head)
    tracking = Tracking(args.pair)
    native = native_dtype(torch.device("cpu")) is torch.bfloat16
    with tracking.new_run("drafter", asdict(recipe), {"pair": args.pair}) as run_id:
        logger = tracking.lightning_logger(run_id)
        found = train(network, recipe, answers, held_out, work, seed, native, logger)
        found["coverage"] = float(
            torch.isin(torch.cat([one.tokens[one.start :] for one in held_out]), ids).float().mean()
        )
        tracking.log(run_id, {}, found)
    dtype = torch.bfloat16
    write_json(args.output / "config.json", written_config(len(ids), config, layers, dtype))
    save_file(network.tensors(dtype), args.output / "model.safetensors")
    counted = {"texts": len(answers), "tokens": sum(len(one.tokens) - one.start for one in answers)}
    seconds = {"texts": collected, "training": perf_counter() - started - collected}
    return {"trained": True, "layers": layers, **counted, "validation": found, "seconds": seconds}


def tapped_layers(depth: int) -> tuple[int, int, int]:
    """Return the tapped layers: what goes into these blocks of a target of ``depth`` blocks is read; `ValueError` if it has too
    few."""
    if depth < LEAST_DEPTH:
        raise ValueError(f"the target has {depth} layers, and an EAGLE-3 drafter is trained for {LEAST_DEPTH} or more.")
    return 2, depth // 2, depth - 3


LAYER = (  # of a layer of the target's shape
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "rms_norm_eps"),
    *("max_position_embeddings", "hidden_act"),
)


def layer_config(config: "PreTrainedConfig") -> "PreTrainedConfig":
    """Return the configuration of a layer of the target's shape."""
    from transformers import LlamaConfig

    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    own = {name: getattr(config, name) for name in LAYER}
    return LlamaConfig(**own, head_dim=head, num_hidden_layers=1, rope_theta=theta, tie_word_embeddings=False)


def written_config(
    num_ids: int, config: "PreTrainedConfig", layers: tuple[int, ...], dtype: torch.dtype
) -> dict[str, Any]:
    """``config.json`` of a drafter over ``num_ids`` of the ids of a target of this ``config``, as vLLM and SGLang read it."""
    layer = layer_config(config)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{name: getattr(layer, name) for name in (*LAYER, "head_dim", "num_hidden_layers")},
        "rope_theta": layer.rope_parameters["rope_theta"],
        "draft_vocab_size": num_ids,
        "eagle_aux_hidden_state_layer_ids": list(layers),
        "tie_word_embeddings": False,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
