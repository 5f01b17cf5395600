"""Controllers that choose a draft's source by what a lookup found, and decoders with a lookup."""

from predictors.controllers import Controller, Session
from predictors.controllers.base import Sourced
from runtime import VERIFIERS, ModelPair
from runtime.audit.tables import TableModel
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.chain import ChainConfig, LookupConfig

PROMPT = [2, 0, 1, 0, 1]  # of three tokens all have occurred: something is always found


def by_found(root):
    """Another source for every token that may be looked up first."""
    return (Sourced(2), Sourced(1, 1), None)[root.found.tokens[0]]


def by_past(root):
    """What the last round came to decides, too."""
    if root.previous is None:
        return Sourced(1, 1)
    return Sourced(0, 0) if root.previous.accepted else by_found(root)


CHOICES = {
    "looked_up": lambda root: Sourced(2),
    "then_drawn": lambda root: Sourced(1, 1),
    "nothing": lambda root: Sourced(0, 0),
    "drawn": lambda root: Sourced(0, 2),
    "own": lambda root: None,
    "by_found": by_found,
    "by_past": by_past,
}


class Choosing(Controller):
    """Sources by ``choose(root)``. The model's own chain stops after a token that the lookup does not have, if it ``agrees``."""

    kind = "choosing"

    def __init__(self, choose, agrees=False):
        self.choose, self.agrees = choose, agrees

    def start(self, settings):
        self.session = ChoosingSession(self)
        return self.session


class ChoosingSession(Session):
    def __init__(self, controller):
        self.controller, self.roots, self.planned = controller, [], 0

    def source(self, root):
        self.roots.append(root)
        return self.controller.choose(root)

    def plan(self, root):
        self.planned += 1

    def stop_after(self, drawn):
        following = drawn.law.root.found.tokens
        place = drawn.law.drafted
        return self.controller.agrees and place < len(following) and int(drawn.token) != following[place]


def toy_pair(vocabulary=3, **options):
    return ModelPair(TableModel(vocabulary, seed=1, **options), TableModel(vocabulary, seed=2, **options))


def mixed_decoder(pair, choose, verifier="block", gamma=2, agrees=False, length=2, **drafter):
    config = ChainConfig(gamma, lookup=LookupConfig(length), **drafter)
    return SequentialDecoder(pair, config, VERIFIERS[verifier], Choosing(choose, agrees))


def lookup_decoder(pair, verifier="block", choose=None, **config):
    """Without a draft model; the static rule where ``choose`` is left out."""
    controller = Choosing(choose or CHOICES["own"])
    return SequentialDecoder(pair, LookupConfig(**config), VERIFIERS[verifier], controller)
