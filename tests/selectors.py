"""Small pairs for delayed-tree selectors, the trees they choose, and the law of what a decoder emits."""

import dataclasses

import numpy as np
import torch

from runtime import ModelPair
from runtime.audit.rounds import decoded_law
from tests.runtime.test_exactness import PROMPT
from tests.toys import tiny_llama


def small_pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1, layers=1, hidden=16))


def tiniest_pair(vocabulary_size=3):
    return ModelPair(tiny_llama(vocabulary_size, seed=0), tiny_llama(vocabulary_size, seed=1, layers=1, hidden=16))


def chosen_trees(decoder):
    """Names of the trees that the controller chooses from now on."""
    names, rule = [], decoder.controller.rule

    class Recording(type(rule)):
        def chosen(self, *given):
            place = super().chosen(*given)
            names.append(decoder.controller.actions[place].name)
            return place

    decoder.controller.rule = Recording(**{field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)})
    return names


def law_of(decoder, length, settings):
    return decoded_law(decoder, PROMPT, length, settings)


def balance(decoder, settings):
    """Shift the selector's worths by their mean over roots, so that no action is the best at all of them."""
    controller, logs, expected = decoder.controller, [], decoder.controller.expected

    def recorded(root):
        tokens_A, *rest = expected(root)
        logs.append(np.log(tokens_A))
        return tokens_A, *rest

    controller.expected = recorded
    law_of(decoder, 3, settings)
    del controller.expected
    controller.network.head[-1].bias.data.sub_(torch.tensor(np.mean(logs, axis=0), dtype=torch.float32))
