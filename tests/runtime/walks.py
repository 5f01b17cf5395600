"""Random requests over several states at once: prompts, scratch trees fed in pieces, paths kept whole or in part."""

from random import Random

import torch

TOLERANCE = 1e-5


def walk(states, random: Random, vocabulary: int, rounds: int = 4) -> None:
    """Every state says what the others say, pass after pass."""

    def passed(count, parents=None):
        tokens = [random.randrange(vocabulary) for _ in range(count)]
        first, *others = (state.forward(tokens, parents).logits for state in states)
        for other in others:
            torch.testing.assert_close(first, other, atol=TOLERANCE, rtol=TOLERANCE)

    def kept(path, pending=0):
        for state in states:
            state.keep(path, pending)

    prompt = random.randint(1, 9)
    passed(prompt)
    kept(range(prompt))
    pending = 0
    for _ in range(rounds):
        parents = list(range(-1, pending - 1))  # what stayed of the last round is a chain
        for _ in range(random.randint(1, 3)):
            count = random.randint(1, 9)
            new = [random.randint(-1, len(parents) + place - 1) for place in range(count)]
            passed(count, new)
            parents += new
        node, path = random.randint(-1, len(parents) - 1), []
        while node >= 0:
            path, node = [node, *path], parents[node]
        pending = random.randint(0, len(path))
        kept(path, pending)
