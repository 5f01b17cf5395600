"""Requests, chance and passes by hand, for guesses of one model that drafts for itself."""

from types import SimpleNamespace

import torch

from runtime.self_drafting.guesses import PassOutcome

EOS = 99


class Scripted:
    """Chance that gives these outcomes in turn (at most the last one possible), then zeros."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def categorical(self, weights):
        shape = weights.shape[:-1]
        drawn = [self.outcomes.pop(0) if self.outcomes else 0 for _ in range(max(1, shape.numel()))]
        return torch.tensor(drawn).clamp(max=weights.shape[-1] - 1).reshape(shape)


def request(chance, prompt=(7,), eos=(EOS,)):
    return SimpleNamespace(prompt=list(prompt), eos_tokens=frozenset(eos), randomness=chance)


def said(newest, following, committed=(5,), candidates=None, predicted=(0,)):
    return PassOutcome(newest, candidates or {}, list(predicted), list(following), list(committed))


def chain(tokens):
    """A trie of one path."""
    trie = {}
    for token in reversed(tokens):
        trie = {token: trie}
    return trie


def paths(rows):
    """The tokens each row sees, itself last."""
    found = []
    for token, parent in zip(rows.tokens, rows.parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found
