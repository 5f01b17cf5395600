"""A chain given its text: prefix by prefix, the distribution is that of Bayes' rule on every chain, verdict and text."""

import itertools

import pytest
import torch

from runtime.leading.leader import LedChain
from runtime.tree import chain_tree
from runtime.verification import VERIFIERS
from tests.runtime.leading import random_probs

VOCABULARY, GAMMA = 3, 3


class Tables:
    """Draft and target probabilities after every prefix of at most γ tokens."""

    def __init__(self, seed, zeros=False):
        generator = torch.Generator().manual_seed(seed)
        self.prefixes = [
            prefix for length in range(GAMMA + 1) for prefix in itertools.product(range(VOCABULARY), repeat=length)
        ]
        draft, target = (random_probs(len(self.prefixes), VOCABULARY, generator, zeros) for _ in range(2))
        self.draft = dict(zip(self.prefixes, draft, strict=True))
        self.target = dict(zip(self.prefixes, target, strict=True))


def probability(table, tokens):
    product = 1.0
    for place, token in enumerate(tokens):
        product *= float(table[tokens[:place]][token])
    return product


def stopped(length):
    """Chains that stop by what was drafted: after ``length`` tokens, or after a token 2."""
    return lambda chain: len(chain) == length or (bool(chain) and chain[-1] == 2)


def chains(stops, prefix=()):
    if stops(prefix):
        return [prefix]
    return [chain for token in range(VOCABULARY) for chain in chains(stops, (*prefix, token))]


def real(tables, verifier, stops):
    """P(chain, accepted, text of γ + 1 tokens) of drafting, verifying and going on with the target."""
    joint = {}
    for chain in chains(stops):
        draft = torch.stack([*(tables.draft[chain[:place]] for place in range(len(chain))), torch.zeros(VOCABULARY)])
        target = torch.stack([tables.target[chain[:place]] for place in range(len(chain) + 1)])
        law = VERIFIERS[verifier](chain_tree(torch.tensor(chain, dtype=torch.int64), draft), target)
        for accepted, stop in enumerate(law.stop.tolist()):
            for token, share in enumerate(law.residual(accepted).tolist() if stop else []):
                add_texts(joint, tables, chain, accepted, token, probability(tables.draft, chain) * stop * share)
    return joint


def add_texts(joint, tables, chain, accepted, token, weight):
    start = (*chain[:accepted], token)
    for rest in itertools.product(range(VOCABULARY), repeat=GAMMA + 1 - len(start)):
        text = (*start, *rest)
        goes_on = probability(tables.target, text) / probability(tables.target, start) if weight else 0.0
        if weight * goes_on:
            key = chain, accepted, text
            joint[key] = joint.get(key, 0.0) + weight * goes_on


def led(tables, joint_weights, stops, kind=LedChain):
    """The same of a text of the target and a chain that is led along it."""
    joint = {}
    for text in itertools.product(range(VOCABULARY), repeat=GAMMA + 1):
        given = probability(tables.target, text)
        for chain, accepted, share in led_chains(tables, joint_weights, stops, text, kind) if given else ():
            joint[chain, accepted, text] = joint.get((chain, accepted, text), 0.0) + given * share
    return joint


def led_chains(tables, joint_weights, stops, text, kind, prefix=(), share=1.0, kept=0, weight=1.0):
    if stops(prefix):
        yield prefix, kept, share
        return
    draft, target = tables.draft[prefix], tables.target[prefix]
    state = kind(0, joint_weights, list(prefix), kept, weight)
    leave = 1.0
    if state.on_text:
        token = text[kept]
        keep = state.keep_probability(float(draft[token]), float(target[token]))
        leave = 1 - keep
        if keep:
            state.keep(token, float(draft[token]), float(target[token]))
            rest = (*prefix, token), share * keep, kept + 1, state.weight
            yield from led_chains(tables, joint_weights, stops, text, kind, *rest)
    surplus = kind(0, joint_weights, list(prefix), kept, weight).surplus(draft, target)
    for token in surplus.nonzero().flatten().tolist() if leave > 0 else ():
        state = kind(0, joint_weights, list(prefix), kept, weight)
        state.leave(token, float(draft[token]), float(target[token]))
        part = share * leave * float(surplus[token] / surplus.sum())
        yield from led_chains(tables, joint_weights, stops, text, kind, (*prefix, token), part, kept, state.weight)


def distance(one, other):
    return 0.5 * sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other})


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("stops", [stopped(GAMMA), stopped(2)])
@pytest.mark.parametrize("verifier", ["tokenwise", "block", "hsd"])
def test_text_then_led_is_the_real_joint(verifier, stops, zeros):
    for seed in range(2):
        tables = Tables(seed, zeros)
        joint = real(tables, verifier, stops)
        assert sum(joint.values()) == pytest.approx(1.0, abs=1e-12)
        assert distance(joint, led(tables, verifier != "tokenwise", stops)) < 1e-12


# ---- deliberately wrong twins


class TokenwiseSurplus(LedChain):
    """Beside the text go tokens that a tokenwise verifier would reject, whatever the prefix weighs."""

    def surplus(self, draft_V, target_V):
        return (draft_V - target_V).clamp(min=0)


class FreeTail(LedChain):
    """After the first token beside the text, the draft's own probabilities: the verdict depends on the tail, too."""

    def surplus(self, draft_V, target_V):
        return super().surplus(draft_V, target_V) if self.on_text else draft_V


class Independent(LedChain):
    """How many tokens are kept does not look at the text."""

    def keep_probability(self, draft, target):
        return 0.6


class Uncapped(LedChain):
    """The joint ratio without the cap at 1."""

    def keep(self, token, draft, target):
        super().keep(token, draft, target)
        self.weight *= max(1.0, target / draft)


@pytest.mark.parametrize("kind", [TokenwiseSurplus, FreeTail, Independent, Uncapped])
def test_wrong_twins_are_noticed(kind):
    stops, tables = stopped(GAMMA), Tables(0)
    assert distance(real(tables, "block", stops), led(tables, True, stops, kind)) > 1e-3


@pytest.mark.parametrize("joint_weights", [False, True])
def test_one_verifiers_chain_is_not_the_others(joint_weights):
    stops, tables = stopped(GAMMA), Tables(0)
    verifier = "tokenwise" if joint_weights else "block"
    assert distance(real(tables, verifier, stops), led(tables, joint_weights, stops)) > 1e-3
