"""Random requests over several states at once: prompts, scratch trees fed in pieces, paths kept whole or in part."""

from random import Random

import torch


def walk(states, random: Random, vocabulary: int, rounds: int = 4, prompt: int = 0, tolerance: float = 1e-5) -> None:
    """Every state says what the first one says, pass after pass; where it taps layers, of these too."""

    said = []  # compared at the end: results of a pass outlive the next one

    def passed(count, parents=None, last=None):
        tokens = [random.randrange(vocabulary) for _ in range(count)]
        said.append([state.forward(tokens, parents, last) for state in states])

    def kept(path, pending=0):
        for state in states:
            state.keep(path, pending)

    prompt = prompt or random.randint(1, 9)
    passed(prompt, last=min(prompt, 9))
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
        passed(1)  # after what is pending
        kept(range(pending), pending)
    for first, *others in said:
        assert first.logits.std() > 0.1, "something to compare"
        for other in others:
            close = {"atol": tolerance, "rtol": tolerance, "check_dtype": False}
            torch.testing.assert_close(first.logits, other.logits, **close)
            if other.hidden_NKD is not None:
                torch.testing.assert_close(first.hidden_NKD, other.hidden_NKD, **close)
