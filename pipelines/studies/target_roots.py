"""Study: what several roots drawn from the target cost in quality (LOSSY; MCSD's "target initialisation").

The trees of paper 002 with W = 1, 2, 3 roots decode the same prompts as the target alone. One root is lossless. Of several the
one whose subtree is accepted furthest is emitted, so tokens with predictable continuations come out too often.

    likelihood   mean log-probability, nats a token, that the target's temperature-1 distribution gives to what was emitted
    same         at temperature 0: share of prompts decoded to the target's own text
    speed        tokens per second over plain decoding

Written as JSON and as a Markdown table; every row of a lossy arm says so.

    draftwright studies.target_roots --pair pystdlib --params pipelines/studies/params.yaml data/device.json data/pystdlib/pair
        data/pystdlib/prompts data/pystdlib/studies/target_roots --latency data/pystdlib/latency
"""

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from pipelines.device import read_device
from pipelines.measuring.arms import decoder_arm
from pipelines.measuring.harness import seed_of, timed
from pipelines.measuring.provenance import provenance
from pipelines.pair_folder import read_pair
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.prompt_table import Prompt, read_prompts
from pipelines.reporting.comparison import of_rates, rate, rate_ratio
from pipelines.reporting.page import write_page
from pipelines.reporting.section import Row, Section, Table
from pipelines.reporting.text import changed
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, build_decoder

PLAIN = "target alone"
FINDING = "One root is lossless; of several the one whose subtree is accepted furthest is emitted, which is not."


@dataclass(frozen=True)
class TargetRootsConfig:
    """Section ``target_roots``: ``roots`` W, each with the tree ``below`` one root, on ``prompts`` test prompts."""

    roots: tuple[int, ...] = (1, 2, 3)
    below: tuple[int, ...] = (4, 3, 1, 1)
    verifier: str = "rrs_without_replacement"
    prompts: int = 24
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_new_tokens: int = 48
    threads: int = 2
    seed: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage, for the record")
    parser.add_argument("pair_folder", type=Path, help="output of the pair stage")
    parser.add_argument("prompts", type=Path, help="output of the prompts stage")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")
    parser.add_argument(
        "--latency", type=Path, required=True, help="folder of the latency stage: how the pair is served"
    )


def run(args: argparse.Namespace) -> None:
    config = load_parameters(TargetRootsConfig, args.pair, "target_roots", args.params)
    device = read_device(args.device)
    place = read_pair(args.pair_folder)
    torch.set_num_threads(config.threads)
    record = args.latency / f"{device['slug']}.json"
    pair = ModelPair.load(**place.models, record=record)
    prompts = read_prompts(args.prompts, "test")[: config.prompts]
    decoders = arms(pair, config)
    rows: list[dict[str, Any]] = []
    with tqdm(total=len(config.temperatures) * len(prompts), desc="target roots", unit="prompt") as bar:
        for temperature in config.temperatures:
            for prompt in prompts:
                rows += decoded(pair, decoders, prompt, SamplingSettings(temperature), config)
                bar.update()
    summary = summarised(rows)
    origin = provenance(device) | {"threads": config.threads, "parameters": asdict(config)}
    page = Section("target_roots", f"Several roots drawn from the target on {args.pair}", FINDING, [table(summary)])
    write_page(args.output / device["slug"], page, {"arms": summary, "provenance": origin})


def arms(pair: ModelPair, config: TargetRootsConfig) -> dict[str, Decoder]:
    """The target alone, and a tree under every number of roots."""
    decoders = {PLAIN: build_decoder(pair, {"method": "autoregressive"})}
    for roots in config.roots:
        drafter = {"kind": "multi_candidate", "config": [roots, *config.below], "roots": "target"}
        made = {"method": "speculative", "drafter": drafter, "verifier": config.verifier, "lossy": roots > 1}
        decoders[f"W = {roots}"] = build_decoder(pair, made)
    return decoders


def decoded(
    pair: ModelPair, decoders: dict[str, Decoder], prompt: Prompt, settings: SamplingSettings, config: TargetRootsConfig
) -> list[dict[str, Any]]:
    """A row for every arm, in an order drawn from the prompt."""
    key = f"{config.seed}/{prompt.id}/{settings.temperature}"
    rows: list[dict[str, Any]] = []
    texts: dict[str, list[int]] = {}
    for name in random.Random(key).sample(list(decoders), len(decoders)):
        arm = decoder_arm(decoders[name], config.max_new_tokens)
        run, seconds = timed(partial(arm, prompt.tokens, settings, seed_of(key)))
        texts[name] = run.tokens
        place = {"arm": name, "temperature": settings.temperature, "document": prompt.document}
        counts = {"tokens": len(run.tokens), "seconds": seconds, "lossy": decoders[name].lossy}
        rows.append({**place, **counts, "log_probability": log_probability(pair, prompt.tokens, run.tokens)})
    return [{**row, "same": float(texts[str(row["arm"])] == texts[PLAIN])} for row in rows]


def log_probability(pair: ModelPair, prompt: Sequence[int], text: Sequence[int]) -> float:
    """Log-probability of ``text`` after ``prompt`` at temperature 1 under the target, from one pass over both."""
    tokens = [*prompt, *text]
    with torch.inference_mode():
        logits = pair.target.open(len(tokens)).forward(tokens, last=len(text) + 1).logits[:-1]
    laws = torch.log_softmax(logits.double(), dim=-1)
    return float(laws.gather(1, torch.tensor(list(text), device=laws.device).unsqueeze(1)).sum())


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every arm at every temperature, with intervals over documents."""
    found = []
    for temperature, part in pd.DataFrame(rows).groupby("temperature"):
        arms = dict(iter(part.groupby("arm")))
        plain, documents = arms[PLAIN], arms[PLAIN]["document"]
        for name, own in arms.items():
            known = own["log_probability"], own["tokens"]
            both = (*known, plain["log_probability"], plain["tokens"])
            less = of_rates(documents, both, lambda one, other: one - other)
            speed = rate_ratio(documents, own["tokens"], own["seconds"], plain["tokens"], plain["seconds"])
            row: dict[str, Any] = {"arm": name, "temperature": temperature, "lossy": bool(own["lossy"].any())}
            row |= {"likelihood": rate(documents, *known), "likelihood_over_plain": less}
            found.append(row | {"same": float(own["same"].mean()), "speedup": speed})
    return found


def table(summary: list[dict[str, Any]]) -> Table:
    """A difference of log-probabilities is shown as a gain of probability."""
    rows: list[Row] = [
        {
            "temperature": f"{row['temperature']:g}",
            "drafted": row["arm"],
            "distribution": "LOSSY" if row["lossy"] else "exact",
            "log-probability a token": row["likelihood"]["value"],
            "probability over the target alone": changed(row["likelihood_over_plain"], math.expm1),
            "same text": row["same"] if row["temperature"] == 0 else None,
            "speed-up": row["speedup"],
        }
        for row in summary
    ]
    return Table(rows, "By temperature and number of roots")
