"""An engine's answers, asked for or read, scored by the target's own forward, which reads each in one pass, and judged."""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pipelines.audit.samples import Sample, Server, read_samples
from pipelines.audit.scores import NO_GUESS, Columns, scored
from pipelines.audit.verdict import NOT_LOSSLESS, UNDECIDED, judged, lines
from pipelines.chat_prompts import chat_documents
from pipelines.measuring.exactness import format_of, near_tie
from pipelines.prompt_table import read_prompts
from pipelines.terminal import brief, recording
from predictors.lookup import founds
from runtime import ModelPair
from runtime.adapter import ReadingState, features_of
from runtime.laws import fit_vocabulary
from runtime.request import encoded, encoded_chat

EXIT = {NOT_LOSSLESS: 1, UNDECIDED: 4}
ROWS = 128  # of logits in float64
MATCH = 2  # tokens after which a lookup guesses


def run(args: argparse.Namespace) -> None:
    if (args.server is None) == (args.samples is None) or args.target is None:
        raise ValueError("name the --target, and either a --server or a file of --samples.")
    sources = [args.samples or args.server, *filter(None, [args.control])]
    servers = [None if one is args.samples or Path(one).is_file() else Server.at(one) for one in sources]
    pair, tables, settings = ModelPair.load(args.target, args.draft, device=args.device, dtype=args.dtype), [], []
    for place, (source, server) in enumerate(zip(sources, servers, strict=True)):
        samples = list(asked(args, server, pair, place)) if server else read_samples(Path(source))
        tables.append(table(pair, samples, args.seed + place))
        settings.append(" | ".join(sorted({one.setting for one in samples})))
    if len(set(settings)) > 1:
        raise ValueError(f"the answers have {settings[0]}, and the control {settings[1]}: give both the same settings.")
    record = judged(*tables) | {"setting": settings[0], "format": format_of(pair), "control": args.control}
    with recording(args.json) as show:
        show(record)
        print(brief(lines(record)))
    if code := EXIT.get(record["verdict"]):
        sys.exit(code)


def asked(args: argparse.Namespace, server: Server, pair: ModelPair, place: int) -> Iterator[Sample]:
    """Answers of a server, of the control at ``place`` 1; those saved before come first, and others are saved."""
    if Path(server.model).name != Path(args.target).name:
        print(f"warning: {server.url} serves {server.model}, and the target is {args.target}", file=sys.stderr)
    save, seed = args.save and args.save.with_name(args.save.name + ".control" * place), args.seed + place * args.count
    settings = args.temperature, args.top_k, args.top_p, args.min_p
    wanted = [Sample(tuple(prompt), (0,), *settings) for prompt in prompts_of(args, pair)]
    kept = read_samples(save)[: len(wanted)] if save and save.is_file() else []
    if [replace(one, tokens=(0,)) for one in kept] != wanted[: len(kept)]:
        raise ValueError(f"{save} holds answers to other prompts or of other settings. Name another file.")
    yield from kept
    rest = wanted[len(kept) :], [args.new_tokens] * len(wanted), range(seed + len(kept), seed + len(wanted))
    with ThreadPoolExecutor(args.together) as pool:
        for one in tqdm(pool.map(server.answer, *rest), desc="ask", unit="answer", total=len(rest[0])):
            if save:
                with save.open("a") as file:
                    print(json.dumps(vars(one)), file=file)
            yield one


def prompts_of(args: argparse.Namespace, pair: ModelPair) -> list[list[int]]:
    """As many prompts as answers; where there are fewer, they come again."""
    if args.prompts:
        found = [prompt.tokens for prompt in read_prompts(args.prompts, "test", args.count)]
    elif pair.tokenizer is None:
        raise ValueError(f"{args.target} has no tokenizer files: name a folder of --prompts.")
    else:
        documents = chat_documents(args.seed)
        said = [one.messages[0] for one in random.Random(args.seed).sample(documents, min(args.count, len(documents)))]
        if getattr(pair.tokenizer, "chat_template", None):
            found = [encoded_chat(pair.tokenizer, [one]) for one in said]
        else:
            found = [[*chain(*encoded(pair.tokenizer, one["content"]))] for one in said]
    found = [one for one in found if len(one) + args.new_tokens <= pair.target.context_limit]
    if not found:
        raise ValueError(f"no prompt leaves room for {args.new_tokens} new tokens in the target's context.")
    return [found[number % len(found)] for number in range(args.count)]


def table(pair: ModelPair, samples: Sequence[Sample], seed: int) -> Columns:
    """Score the tokens of ``samples``, with their answer, place and position; `ValueError` for those of another model."""
    chance, parts, size = np.random.default_rng(seed), list[Columns](), pair.target.vocabulary_size
    for number, one in enumerate(tqdm(samples, desc="score", unit="answer")):
        text, length = [*one.prompt, *one.tokens], len(one.tokens)
        if max(text) >= size:
            raise ValueError(f"answer {number + 1} holds token {max(text)}, and the target has {size}: another model.")
        found = founds(text[:-1], 1)[-length:]
        copied = [match.tokens[0] if match.length >= MATCH else NO_GUESS for match in found]
        logits_NV, draft_NV = read(pair, text, length)
        drawn = (torch.tensor(each).to(logits_NV.device) for each in (one.tokens, copied, chance.random(length)))
        tokens_N, copied_N, uniform_N = drawn
        for rows in torch.arange(length).split(ROWS):
            own = logits_NV[rows], tokens_N[rows], copied_N[rows], uniform_N[rows]
            draft = None if draft_NV is None else draft_NV[rows]
            parts.append(scored(*own, one.settings, one.min_p, draft, near_tie(pair.target.dtype)))
        passes = [np.arange(some) for some in one.emitted or ()] or [np.full(length, -1)]
        parts[-1] |= {"answer": np.full(length, number), "place": np.arange(length), "position": np.concatenate(passes)}
    return {name: np.concatenate([one[name] for one in parts if name in one], -1) for name in parts[-1]}


@torch.inference_mode()
def read(pair: ModelPair, text: list[int], length: int) -> tuple[Tensor, Tensor | None]:
    """Logits of the target, and of a draft, in front of the last ``length`` tokens of ``text``."""
    layers = () if pair.draft is None else features_of(pair.draft)
    out = pair.target.open(len(text), layers).forward(text[:-1], last=length)
    if pair.draft is None:
        return out.logits, None
    state, fed = pair.draft.open(len(text)), text[:-1]
    if out.hidden_NKD is not None:  # it begins with the second token
        cast(ReadingState, state).offer(out.hidden_NKD[:-1])
        fed = fed[1:]
    draft_NV = fit_vocabulary(state.forward(fed, last=min(length, len(fed))).logits, pair.target.vocabulary_size)
    return out.logits, torch.nn.functional.pad(draft_NV, (0, 0, length - len(draft_NV), 0))  # of the second: no guess
