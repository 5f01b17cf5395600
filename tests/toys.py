"""Toy models readable in ten lines, and chance that forks: the exact output law of a real decoder."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from runtime.adapter import Forward


class TableModel:
    """A language model given by a table: logits of the next token depend on the last two tokens of the context."""

    context_limit = 1000
    device, dtype, programs = torch.device("cpu"), torch.float64, None
    eos_tokens: frozenset[int] = frozenset()

    def __init__(self, vocabulary_size: int, seed: int, sharpness: float = 1.5, zeros: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocabulary_size = vocabulary_size
        shape = (vocabulary_size + 1, vocabulary_size + 1, vocabulary_size)
        self.table = sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
        if zeros:  # impossible tokens, but never all of them
            impossible = torch.rand(shape, generator=generator) < 0.3
            impossible[..., 0] = False
            self.table[impossible] = -torch.inf

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> "TableState":
        return TableState(self)

    def embedding(self, token: int) -> Tensor:
        return torch.zeros(1)

    def logits(self, context: list[int]) -> Tensor:
        padded = [self.vocabulary_size, self.vocabulary_size, *context]
        return self.table[padded[-2], padded[-1]]


class TableState:
    """Committed tokens plus scratch nodes; no cache, so it cannot go stale."""

    def __init__(self, model: TableModel) -> None:
        self.model, self.committed = model, []
        self.nodes: list[tuple[int, list[int]]] = []

    def forward(self, tokens, parents=None, last=None) -> Forward:
        first = len(self.nodes)
        parents = range(first - 1, first + len(tokens) - 1) if parents is None else parents
        for token, parent in zip(torch.as_tensor(tokens).tolist(), parents, strict=True):
            before = self.committed if parent < 0 else self.nodes[parent][1]
            self.nodes.append((parent, [*before, token]))
        rows = [self.model.logits(context) for _, context in self.nodes[first:]]
        return Forward(torch.stack(rows)[-(last or len(rows)) :])

    def keep(self, path, pending=0) -> None:
        kept = [self.nodes[node] for node in path]
        assert [parent for parent, _ in kept] == [-1, *list(path)[:-1]][: len(kept)]
        if len(kept) > pending:
            self.committed = kept[len(kept) - pending - 1][1]
        self.nodes = [(place - 1, text) for place, (_, text) in enumerate(kept[len(kept) - pending :])]


class Forking:
    """Chance that forks at every draw: `enumerate_outcomes` runs a function once per combination of outcomes."""

    def __init__(self, script: list[int]) -> None:
        self.script, self.taken, self.probability = script, 0, 1.0
        self.open_choices: list[list[int]] = []

    def categorical(self, weights: Tensor) -> Tensor:
        if weights.dim() == 1:
            return torch.tensor(self._draw(weights.tolist()))
        rows = weights.reshape(-1, weights.shape[-1]).tolist()
        return torch.tensor([self._draw(row) for row in rows]).reshape(weights.shape[:-1])

    def _draw(self, weights: list[float]) -> int:
        possible = [token for token, weight in enumerate(weights) if weight]
        assert possible, "categorical was given a row without mass"
        if self.taken == len(self.script):
            self.script.append(possible[0])
            self.open_choices.append(possible[1:])
        choice = self.script[self.taken]
        self.taken += 1
        self.probability *= weights[choice] / sum(weights)
        return choice


def enumerate_outcomes(run: Callable[[Forking], object]) -> Iterator[tuple[object, float]]:
    """Every outcome of ``run`` with its probability; outcomes may repeat."""
    script: list[int] = []
    alternatives: list[list[int]] = []
    while True:
        chance = Forking(list(script))
        outcome = run(chance)
        alternatives += chance.open_choices
        script = chance.script
        yield outcome, chance.probability
        while alternatives and not alternatives[-1]:
            alternatives.pop()
            script = script[: len(alternatives)]
        if not alternatives:
            return
        script = [*script[: len(alternatives) - 1], alternatives[-1].pop(0)]


def summed(outcomes: Iterable[tuple[object, float]]) -> dict:
    """The law of ``outcomes``, which may repeat, each with its probability."""
    law: dict = {}
    for outcome, probability in outcomes:
        law[outcome] = law.get(outcome, 0.0) + probability
    return law


def output_law(run: Callable[[Forking], object]) -> dict[tuple[int, ...], float]:
    """Law of the token sequence that ``run(chance)`` returns."""
    return summed((tuple(outcome), probability) for outcome, probability in enumerate_outcomes(run))


def total_variation(law: dict, other: dict) -> float:
    return 0.5 * sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in {*law, *other})


def tiny_llama(
    vocabulary_size: int = 32, seed: int = 0, hidden: int = 32, layers: int = 2, **config
) -> LlamaForCausalLM:
    """A random Llama in float32 whose laws are neither flat nor one-hot."""
    torch.manual_seed(seed)
    sizes = {"intermediate_size": 2 * hidden, "num_attention_heads": 4, "num_key_value_heads": 2}
    options = sizes | {"max_position_embeddings": 256, "vocab_size": vocabulary_size, "hidden_size": hidden}
    options |= {"num_hidden_layers": layers, **dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))}
    model = LlamaForCausalLM(LlamaConfig(**options | config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    return model.eval()


def near(model: LlamaForCausalLM, noise: float = 0.02) -> LlamaForCausalLM:
    """``model``, its weights changed a little: a draft that is sometimes right."""
    for index, parameter in enumerate(model.parameters()):
        parameter.data.add_(noise * parameter.data.std() * (index % 3))
    return model
