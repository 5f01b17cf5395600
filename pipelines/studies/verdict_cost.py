"""Study: what a verdict costs at a large vocabulary, as a ratio to one softmax over the same rows.

    ratio = time(distribution of the outcome, a stop row, its residual) / time(softmax over the N + 1 target rows)

Both models' distributions are float32 and close to each other, as a good draft's are; trees are drawn from them. Rules and
softmax take turns; medians with quartiles over the repeats are written, as JSON and as a Markdown table.

    draftwright studies.verdict_cost data/device.json data/studies/verdict_cost
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pipelines.device import read_device
from pipelines.measuring.provenance import provenance
from pipelines.reporting.page import write_page
from pipelines.reporting.section import Row, Section, Table
from pipelines.terminal import count
from runtime.latency.cells import seconds_of
from runtime.pair import usable
from runtime.tree import DraftLaw, TokenTree
from runtime.verification import ALIASES, VERIFIERS

SHAPES = {
    "chain of 8": [1] * 8,
    "30 nodes, 4 paths after a trunk of 2": [1, 1, 4, *[1] * 6],
    "28 nodes, (4, 2, 1, 1)": [4, 2, 1, 1],
}

FINDING = "Time for the distribution of the outcome, a stop row and its residual, over that for one softmax of the target rows."
# Rules whose work on distinct draws differs from that on i.i.d. ones.
READS_DRAWS = ("rrs_without_replacement", "traversal")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", type=Path, help="JSON file of the device stage, for the record")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")
    parser.add_argument("--vocabulary", type=count, default=152_064, help="default: %(default)s (Qwen2.5)")
    parser.add_argument("--repeats", type=count, default=15, help="default: %(default)s")
    parser.add_argument("--threads", type=count, default=2, help="CPU threads (default: %(default)s)")
    parser.add_argument("--on", default="cpu", help="torch device of the distributions (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    place = usable(args.on)
    torch.set_num_threads(args.threads)
    device = read_device(args.device)
    rows = []
    for name, widths in tqdm(SHAPES.items(), desc="verdict cost", unit="tree"):
        rows += measure(name, widths, args.vocabulary, args.repeats, place)
    origin = provenance(device) | {"threads": args.threads, "on": args.on}
    page = Section(f"verdict_cost_{args.on}", "What a verdict costs", FINDING, [table(rows, args.vocabulary)])
    record = {"vocabulary": args.vocabulary, "rows": rows, "provenance": origin}
    write_page(args.output / device["slug"], page, record)


def measure(
    name: str, widths: Sequence[int], vocabulary: int, repeats: int, device: torch.device
) -> list[dict[str, Any]]:
    """Ratios of every rule that takes the tree."""
    rows = []
    for law in (DraftLaw.IID, DraftLaw.WITHOUT_REPLACEMENT):
        tree, logits = random_tree(widths, law, vocabulary, device)
        target_probs = torch.softmax(logits, dim=-1)
        rules = {
            rule.name: rule
            for rule in VERIFIERS.values()
            if law in rule.lossless_for
            and (tree.is_chain or not rule.chains_only)
            and (law is DraftLaw.IID or rule.name in READS_DRAWS)
            and rule.name not in ALIASES
        }
        work: dict[str, Callable[[], Any]] = {"softmax": partial(torch.softmax, logits, -1)}
        work |= {key: partial(verdict, rule, tree, target_probs) for key, rule in rules.items()}
        times = take_turns(work, repeats, device)
        for key in rules:
            ratios = sorted(own / base for own, base in zip(times[key], times["softmax"], strict=True))
            low, median, high = (ratios[int(share * (len(ratios) - 1))] for share in (0.25, 0.5, 0.75))
            where = {"tree": name, "draws": law.value, "rows": tree.num_nodes + 1, "verifier": key}
            milliseconds = 1000 * statistics.median(times["softmax"])
            rows.append({**where, "ratio": median, "low": low, "high": high, "softmax_ms": milliseconds})
    return rows


def verdict(rule: Callable[..., Any], tree: TokenTree, target_probs: torch.Tensor) -> torch.Tensor:
    """A stop row and the residual there, for a tree whose host lists are not known yet; the row stays on its device."""
    law = rule(dataclasses.replace(tree), target_probs)
    residual: torch.Tensor = law.residual(law.stop.argmax())
    return residual


def take_turns(work: dict[str, Callable[[], Any]], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of every piece of work, one after the other in each repeat, after one round to warm up."""
    times: dict[str, list[float]] = {key: [] for key in work}
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for key, job in work.items():
                times[key].append(seconds_of(job, device))
    return {key: seconds[1:] for key, seconds in times.items()}


def random_tree(
    widths: Sequence[int], law: DraftLaw, vocabulary: int, device: torch.device
) -> tuple[TokenTree, torch.Tensor]:
    """A tree with ``widths[l]`` draws under every node of level l, and target logits [N + 1, V] near the draft's."""
    parents: list[int] = []
    level = [-1]
    for width in widths:
        new = [parent for parent in level for _ in range(width)]
        level = list(range(len(parents), len(parents) + len(new)))
        parents += new
    generator = torch.Generator().manual_seed(0)
    draft_logits = 3 * torch.randn(len(parents) + 1, vocabulary, generator=generator)
    target_logits = draft_logits + 0.5 * torch.randn(draft_logits.shape, generator=generator)
    draft_probs = torch.softmax(draft_logits, dim=-1)
    tokens = torch.empty(len(parents), dtype=torch.int64)
    for parent in sorted(set(parents)):
        children = [node for node, above in enumerate(parents) if above == parent]
        tokens[children] = torch.multinomial(draft_probs[parent + 1], len(children), generator=generator)
    tree = TokenTree(tokens=tokens, parents=torch.tensor(parents), draft_probs=draft_probs.to(device), law=law)
    return tree, target_logits.to(device)


def table(rows: Sequence[dict[str, Any]], vocabulary: int) -> Table:
    """One line per tree and rule."""
    made: list[Row] = []
    for row in rows:
        named = {"tree": row["tree"], "draws": row["draws"], "rule": f"`{row['verifier']}`"}
        ratio = {"value": row["ratio"], "low": row["low"], "high": row["high"]}
        made.append({**named, "verdict / softmax": ratio})
    return Table(made, f"Vocabulary of {vocabulary} tokens; medians, with quartiles")
