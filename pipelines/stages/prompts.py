"""Stage ``prompts``: draw prompts from documents, split by document.

No document is in two splits. The pair may know any text: splits keep drafters and controllers from what they are chosen on and
scored on. The first n prompts of a split alternate slices and documents for every n.

    draftwright prompts --pair smollm2 data/smollm2/pair data/smollm2/prompts
"""

import argparse
import itertools
import math
import random
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pipelines.documents import Source, load_documents
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.places import read_facts, read_pair
from pipelines.prompt_table import FILE, SPLITS, Prompt, write_prompts
from pipelines.recipes import chat_template
from pipelines.shares import Document, Shares, share_documents
from predictors.config import Checked, Count, Whole, not_empty
from runtime.pair import load_tokenizer
from runtime.request import encoded, encoded_chat

Queues = Mapping[str, list[Iterator[Prompt]]]  # the prompts of every document, by slice


@dataclass(frozen=True)
class PromptParameters(Checked):
    """Section ``prompts``: how many prompts each split has, spread evenly over slices as far as their documents allow.

    Windows have ``min_tokens`` to ``max_tokens``, drawn uniformly, with ``room`` for so many tokens of the document
    after them; at most ``prompts_per_document`` of one, which do not overlap. Whole-document prompts over ``longest``
    tokens are left out. ``shares`` of the documents, by split.
    """

    sources: Annotated[tuple[Source, ...], not_empty]
    seed: int = 0
    drafter: Whole = 0
    train: Whole = 540
    validation: Whole = 160
    test: Whole = 200
    reserve: Whole = 60
    min_tokens: Count = 16
    max_tokens: int = 128
    room: Whole = 64
    prompts_per_document: Count = 8
    longest: int = 1024
    shares: Shares = field(default_factory=Shares)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"sources must have different names, got {', '.join(names)}.")
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"need min_tokens <= max_tokens, got {self.min_tokens} and {self.max_tokens}.")


@dataclass(frozen=True)
class Mix:
    """Section ``mix``: what headline numbers are of. ``slices`` of the documents (null: all there are) and ``temperatures``,
    which every stage that measures has in its own section."""

    slices: tuple[str, ...] | None = None
    temperatures: tuple[float, ...] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.slices is not None and not self.slices:
            raise ValueError("slices must name at least one, or be null.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("pair_folder", type=Path, help="folder written by the pair stage")
    parser.add_argument("output", type=Path, help="folder to write")


def run(args: argparse.Namespace) -> None:
    parameters = load_parameters(PromptParameters, args.pair, "prompts", args.params)
    tokenizer = load_tokenizer(read_pair(args.pair_folder).tokenizer)
    mix = load_parameters(Mix, args.pair, "mix", args.params)
    prompts = draw_prompts(parameters, tokenizer, mix)
    size = read_facts(args.pair_folder).get("vocabulary", {}).get("target", math.inf)
    if unknown := {tokenizer.decode(token) for prompt in prompts for token in prompt.tokens if token >= size}:
        raise ValueError(
            f"the tokenizer has {', '.join(sorted(unknown)[:3])}, and the target no row for it: its vocabulary ends at {size}. "
            "Take the tokenizer that the model was made with, or another 'chat_template'."
        )
    write_prompts(args.output / FILE, prompts)
    for split in SPLITS:
        chosen = [prompt for prompt in prompts if prompt.split == split]
        slices = {name: sum(p.slice == name for p in chosen) for name in sorted({p.slice for p in chosen})}
        print(f"{split}: {len(chosen)} prompts from {len({p.document for p in chosen})} documents, {slices}")


def draw_prompts(parameters: PromptParameters, tokenizer: Any, mix: Mix | None = None) -> list[Prompt]:
    """Prompts of the mix of all splits, in an order whose every prefix alternates slices and documents."""
    mix = mix or Mix()
    drawer = _Drawer(parameters, tokenizer)
    dealt = [(source, _splits(source, parameters)) for source in parameters.sources]
    known = {document.slice for _, splits in dealt for some in splits.values() for document in some}
    if missing := sorted(set(mix.slices or ()) - known):
        raise ValueError(f"mix.slices names {', '.join(missing)}, but documents are of {', '.join(sorted(known))}.")
    prompts = []
    for split in SPLITS:
        mixed: Queues = defaultdict(list)
        for source, splits in dealt:
            for document in splits[split]:
                if mix.slices is None or document.slice in mix.slices:
                    mixed[document.slice].append(drawer.prompts(document, source, split))
        generator = random.Random(f"{parameters.seed} {split}")
        prompts += drawer.drawn(mixed, getattr(parameters, split), split, generator)
    if drawer.num_too_long:
        print(f"{drawer.num_too_long} prompts longer than {parameters.longest} tokens were left out")
    return prompts


def _splits(source: Source, parameters: PromptParameters) -> Mapping[str, Sequence[Document]]:
    """The documents of a source, by split."""
    shares = {split: getattr(parameters.shares, split) for split in SPLITS if split in source.shares}
    whole = math.fsum(shares.values())
    if not whole:
        raise ValueError(f"source {source.name!r} goes to {', '.join(shares)}, whose share is 0: raise it.")
    documents = load_documents(source, parameters.seed)
    dealt = share_documents(documents, {split: share / whole for split, share in shares.items()})
    return {split: dealt.get(split, ()) for split in SPLITS}


class _Drawer:
    """Turns documents into prompts; each document has its own random stream, so it does not depend on the others."""

    def __init__(self, parameters: PromptParameters, tokenizer: Any) -> None:
        self.parameters = parameters
        self.tokenizer = tokenizer
        self.num_too_long = 0

    def drawn(self, queues: Queues, wanted: int, split: str, generator: random.Random) -> list[Prompt]:
        """Up to ``wanted`` prompts, of slices in turn and in each of its documents in turn; says what is missing."""
        slices = [_in_turn(generator.sample(documents, len(documents))) for _, documents in sorted(queues.items())]
        drawn = list(itertools.islice(_in_turn(slices), wanted))
        if wanted and not drawn:
            too_long = f"{self.num_too_long} are longer than {self.parameters.longest} tokens (longest). Cut windows of them (a "
            too_long = f"{too_long}source's cut: window), raise it, " if self.num_too_long else ""
            raise ValueError(
                f"no document of split {split!r} yields a prompt: {too_long}add documents, raise its share, lower min_tokens "
                "and room, or name the split in a source's 'shares' if all sources have some."
            )
        if len(drawn) < wanted:
            print(f"{split}: the documents yield {len(drawn)} of {wanted} prompts")
        return drawn

    def prompts(self, document: Document, source: Source, split: str) -> Iterator[Prompt]:
        """The document's prompts, made on demand."""
        name = document.id if document.id.startswith(f"{source.name}/") else f"{source.name}/{document.id}"
        for number, tokens in enumerate(self._token_lists(document, source, name)):
            said = self.tokenizer.decode(tokens)
            yield Prompt(f"{name}#{number}", name, source.name, document.slice, split, said, tokens)

    def _token_lists(self, document: Document, source: Source, name: str) -> Iterator[list[int]]:
        start, own = ([], []) if source.converses else encoded(self.tokenizer, document.text)
        if source.cut == "window":
            windows = self._windows(own, random.Random(f"{self.parameters.seed} {name}"))
            yield from (start + window for window in windows)
            return
        texts: Iterable[list[int]]
        if source.converses:
            said = document.messages or ({"role": "user", "content": document.text},)
            ends = range(1, len(said) + 1, 2) if source.turns else [len(said)]  # up to each turn
            several = [[one] for one in said] if source.kind == "chat" else [said[:end] for end in ends]
            texts = (self._conversation(messages, source) for messages in several)
        else:
            texts = [start + own]
        for tokens in texts:
            if not tokens:
                raise ValueError(f"document {name!r} gives an empty prompt.")
            if len(tokens) > self.parameters.longest:
                self.num_too_long += 1
            else:
                yield tokens

    def _conversation(self, messages: Sequence[dict[str, str]], source: Source) -> list[int]:
        template = chat_template(source.chat_template)
        if not template and not self.tokenizer.chat_template:
            setting = next((key for key in ("messages", "turns") if getattr(source, key)), "chat")
            raise ValueError(
                f"source {source.name!r} uses {setting!r}, but the pair's tokenizer has no chat template. "
                "Give the source a 'chat_template'."
            )
        system = [{"role": "system", "content": source.system}] if source.system else []
        try:
            return encoded_chat(self.tokenizer, [*system, *messages], template)
        except ValueError as error:
            raise ValueError(f"source {source.name!r}: {error}") from error

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


def _in_turn(some: Iterable[Iterator[Prompt]]) -> Iterator[Prompt]:
    """The next prompt of each in turn, as long as any has one."""
    waiting = deque(some)
    while waiting:
        first = waiting.popleft()
        for prompt in itertools.islice(first, 1):
            yield prompt
            waiting.append(first)
