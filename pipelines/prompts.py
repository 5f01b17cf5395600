"""Stage ``prompts``: draw prompts from documents, split by document.

No document is in two splits. Those of a built-in pair are its shares: neither model was trained on any of them. A user's own
pair may know any text: there the splits only keep controllers from what they are chosen on and scored on. The first n prompts
of a split alternate slices and documents for every n.
"""

import argparse
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.builtin.corpus import BuiltinCorpus, Document
from pipelines.documents import Source, load_documents
from pipelines.pair_folder import read_facts, read_pair
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.prompt_table import FILE, SPLITS, Prompt, write_prompts
from pipelines.shares import Shares


@dataclass(frozen=True)
class PromptParameters:
    """Section ``prompts``.

    Attributes
    ----------
    train, validation, test, reserve
        Number of prompts, spread evenly over slices as far as their documents allow.
    min_tokens, max_tokens
        Lengths of windows, drawn uniformly.
    room
        Tokens of the document left after a window.
    prompts_per_document
        At most so many windows, which do not overlap.
    longest
        Whole-document prompts with more tokens are left out.
    shares
        Of the documents, by split. The built-in corpus of a built-in pair is dealt out by the pair's own (``models.builtin``).
    """

    sources: tuple[Source, ...]
    seed: int = 0
    train: int = 540
    validation: int = 160
    test: int = 200
    reserve: int = 60
    min_tokens: int = 16
    max_tokens: int = 128
    room: int = 64
    prompts_per_document: int = 8
    longest: int = 1024
    shares: Shares = field(default_factory=Shares)

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("sources must name at least one source of documents.")
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"sources must have different names, got {', '.join(names)}.")
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"need 1 <= min_tokens <= max_tokens, got {self.min_tokens} and {self.max_tokens}.")
        if min(self.train, self.validation, self.test, self.reserve, self.room) < 0 or self.prompts_per_document < 1:
            raise ValueError("numbers of prompts and room must not be negative, prompts_per_document at least 1.")
        if self.shares.pair:
            raise ValueError("shares.pair must be 0 here: what trains a built-in pair stands in models.builtin.shares.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("pair_folder", type=Path, help="folder written by the pair stage")
    parser.add_argument("output", type=Path, help="folder to write")


def run(args: argparse.Namespace) -> None:
    from transformers import AutoTokenizer

    parameters = load_parameters(PromptParameters, args.pair, "prompts", args.params)
    tokenizer = AutoTokenizer.from_pretrained(read_pair(args.pair_folder).tokenizer, local_files_only=True)
    prompts = draw_prompts(parameters, read_facts(args.pair_folder), tokenizer)
    write_prompts(args.output / FILE, prompts)
    for split in SPLITS:
        chosen = [prompt for prompt in prompts if prompt.split == split]
        slices = {name: sum(p.slice == name for p in chosen) for name in sorted({p.slice for p in chosen})}
        print(f"{split}: {len(chosen)} prompts from {len({p.document for p in chosen})} documents, {slices}")


def draw_prompts(parameters: PromptParameters, facts: dict[str, Any], tokenizer: Any) -> list[Prompt]:
    """Prompts of all splits, each split in an order whose every prefix alternates slices and documents.

    Parameters
    ----------
    facts
        ``pair.json`` of the pair: what a built-in one was trained on is left out.
    tokenizer
        The pair's Hugging Face tokenizer.
    """
    drawer = _Drawer(parameters, tokenizer)
    queues: dict[str, dict[str, list[Iterator[Prompt]]]] = {split: {} for split in SPLITS}
    for source in parameters.sources:
        for split, documents in _splits(source, parameters, facts).items():
            for document in documents:
                queues[split].setdefault(document.slice, []).append(drawer.prompts(document, source, split))
    prompts = []
    for split in SPLITS:
        wanted = getattr(parameters, split)
        drawn = list(_alternate(queues[split], wanted, random.Random(f"{parameters.seed} {split}")))
        if wanted and not drawn:
            raise ValueError(
                f"no document of split {split!r} yields a prompt: add documents or lower min_tokens and room."
            )
        if len(drawn) < wanted:
            print(f"{split}: the documents yield {len(drawn)} of {wanted} prompts")
        prompts += drawn
    if drawer.num_too_long:
        print(f"{drawer.num_too_long} documents longer than {parameters.longest} tokens were left out")
    return prompts


def _splits(source: Source, parameters: PromptParameters, facts: dict[str, Any]) -> Mapping[str, Sequence[Document]]:
    if source.kind == "builtin" and facts["source"] == "builtin":
        dealt = _pair_documents(facts)
    else:
        dealt = parameters.shares.deal(load_documents(source))
    return {split: dealt[split] for split in SPLITS}


def _pair_documents(facts: dict[str, Any]) -> Mapping[str, Sequence[Document]]:
    corpus = BuiltinCorpus.load(Shares(**facts["corpus"]["shares"]))
    if corpus.manifest != facts["corpus"]["manifest"]:
        raise ValueError(
            "the built-in corpus is not the one this pair was trained on (pair: Python "
            f"{facts['corpus']['python']}, here: Python {sys.version.split()[0]}), so held-out documents would not be "
            "held out. Run the pair stage again with this Python, or go back to the pair's."
        )
    return corpus.documents


class _Drawer:
    """Turns documents into prompts; each document has its own random stream, so it does not depend on the others."""

    def __init__(self, parameters: PromptParameters, tokenizer: Any) -> None:
        self.parameters = parameters
        self.tokenizer = tokenizer
        self.num_too_long = 0

    def prompts(self, document: Document, source: Source, split: str) -> Iterator[Prompt]:
        """The document's prompts, tokenised when the first is asked for."""
        name = document.id if document.id.startswith(f"{source.name}/") else f"{source.name}/{document.id}"
        for index, tokens in enumerate(self._token_lists(document, source, name)):
            text = self.tokenizer.decode(tokens)
            yield Prompt(f"{name}#{index}", name, source.name, document.slice, split, text, tokens)

    def _token_lists(self, document: Document, source: Source, name: str) -> Iterable[list[int]]:
        if source.windows:
            tokens = self.tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"]
            start = self.tokenizer("")["input_ids"]  # what the tokenizer puts before every text, if anything
            windows = self._windows(tokens, random.Random(f"{self.parameters.seed} {name}"))
            return (start + window for window in windows)
        tokens = self._whole(document, source)
        if not tokens:
            raise ValueError(f"document {name!r} gives an empty prompt.")
        if len(tokens) > self.parameters.longest:
            self.num_too_long += 1
            return []
        return [tokens]

    def _whole(self, document: Document, source: Source) -> list[int]:
        if not document.messages and not source.chat:
            return list(self.tokenizer(document.text)["input_ids"])
        if not self.tokenizer.chat_template:
            setting = "messages" if document.messages else "chat"
            raise ValueError(f"source {source.name!r} uses {setting!r}, but the pair's tokenizer has no chat template.")
        messages = list(document.messages) or [{"role": "user", "content": document.text}]
        encoded = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])

    def _windows(self, tokens: list[int], generator: random.Random) -> Iterator[list[int]]:
        """Disjoint windows of random length in random order, each with room after it."""
        p = self.parameters
        slot = p.max_tokens + p.room
        if len(tokens) < p.min_tokens + p.room:
            return
        num_slots = max(1, len(tokens) // slot)
        slots = generator.sample(range(num_slots), min(num_slots, p.prompts_per_document))
        for index in slots:
            start, end = index * len(tokens) // num_slots, (index + 1) * len(tokens) // num_slots
            length = generator.randint(p.min_tokens, min(p.max_tokens, end - start - p.room))
            first = generator.randint(start, end - p.room - length)
            yield tokens[first : first + length]


def _alternate(slices: dict[str, list[Iterator[Prompt]]], count: int, generator: random.Random) -> Iterator[Prompt]:
    """One prompt of each slice in turn; within a slice one of each document in turn, documents in random order."""
    queues = {name: deque(generator.sample(documents, len(documents))) for name, documents in sorted(slices.items())}
    drawn = 0
    while drawn < count and any(queues.values()):
        for queue in queues.values():
            prompt = _next_prompt(queue)
            if prompt is not None and drawn < count:
                drawn += 1
                yield prompt


def _next_prompt(queue: deque[Iterator[Prompt]]) -> Prompt | None:
    while queue:
        document = queue.popleft()
        prompt = next(document, None)
        if prompt is not None:
            queue.append(document)
            return prompt
    return None


if __name__ == "__main__":
    from pipelines.cli import main

    main(["prompts", *sys.argv[1:]])
