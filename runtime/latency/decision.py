"""Cells of what is computed between passes besides drawing and verification: by learned controllers, and by self-drafting.

    reading    entropy    the confidence of a draft's law, read by the host; 1: and its entropy
    predictor  features   one decision of H-RAD's head (`predictors.network`) on so many numbers, read by the host
    selection  features   one choice of a delayed-tree selector (`predictors.tree_choice`) from hidden states of so many numbers
    stopping   features   one question to a stop model (`predictors.stopping`): on a draft's law (few numbers) or state (many)
    survival   positions  one decision of the survival model (`predictors.survival`) about so many drafted tokens
    guessing   guessed    what a pass over so many guesses takes outside the model, in the dearest of the methods
                          (`runtime.self_drafting.progressive_tree`): a binary tree, every guess new to it and known to the pool

What is asked at every step comes after another question and a draft step. Weights, states and laws are random.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from predictors.actions import ActionSet
from predictors.controllers.base import Rerun
from predictors.decision_rule import Calibration
from predictors.features import FEATURE_SETS, FeatureSpec, served_features
from predictors.network import HRADNetwork
from predictors.sampling import SamplingSettings
from predictors.signals import BothModels, DrawnToken, NextLaw, Root, TreeRoot, token_numbers
from predictors.stopping import BEFORE, LAW, NetworkShape, StopNetwork, StopSpec, features_of
from predictors.survival import UNCHANGED, Answering, Course, SurvivalNetwork
from predictors.tree_choice import SelectionSpec, SelectorNetwork, assembled, scalars_of, state_of
from runtime.adapter import LanguageModel
from runtime.graphs import maker_for
from runtime.latency.cells import TAPPED, Cell, LatencyConfig
from runtime.latency.passes import Passes, begin_round
from runtime.laws import processed_law
from runtime.pair import ModelPair
from runtime.randomness import Randomness
from runtime.request import Request
from runtime.self_drafting.guesses import PassOutcome, levels
from runtime.self_drafting.progressive_tree import Node, ProgressiveTree, ProgressiveTreeConfig

SAMPLED = SamplingSettings(0.6)
TOP = 10  # probabilities that a stop model reads of a law
HIDDEN = 16  # units of a survival model
GUESSING = ProgressiveTreeConfig(geometry="paper", max_children=3, max_depth=64, pool_nodes=1024)
LONGEST_PATH = 64  # of candidates

Work = Callable[[], object]


class Laws:
    """A draft's law over ``vocabulary_size`` tokens that nobody has read."""

    def __init__(self, vocabulary_size: int, device: torch.device, generator: torch.Generator) -> None:
        self._logits_V = torch.rand(vocabulary_size, generator=generator).to(device)
        self._probs_V = processed_law(self._logits_V, SAMPLED)

    def behind(self, root: Root, hidden_KD: Tensor | None = None) -> NextLaw:
        """The law behind ``root``, as if it had just come from the draft."""
        return NextLaw(root, SAMPLED, 0, self._logits_V, self._probs_V, hidden_KD)

    @torch.inference_mode()
    def read(self, entropy: bool) -> tuple[float, ...]:
        """Its confidence, and its ``entropy``."""
        law = self.behind(Root(32, 1, SAMPLED, None))
        return (float(law.confidence), float(law.entropy)) if entropy else (float(law.confidence),)


def head(num_features: int, laws: Laws, device: torch.device, generator: torch.Generator) -> Work:
    """A head over the extended features, ``num_features`` numbers in all, on ``device``: the likeliest class and the squared
    distance."""
    scalars = len(FEATURE_SETS["extended"])
    hidden = (num_features - scalars) // (TAPPED + 1)
    embedding = num_features - scalars - TAPPED * hidden
    spec = FeatureSpec("extended", tuple(range(TAPPED)), hidden, embedding, gamma=8)
    network = HRADNetwork(spec.state_size, scalars, None).eval().to(device)
    rerun, calibration = Rerun(network.served, maker_for(device)), Calibration()
    count = len(calibration.bias)
    hidden_KD = torch.randn(TAPPED, hidden, generator=generator).to(device)
    embedding_E = torch.randn(embedding, generator=generator).to(device)

    @torch.inference_mode()
    def decide() -> tuple[int, float]:
        root = Root(32, 1, SAMPLED, None, hidden_KD, embedding_E)
        said = rerun(served_features(spec, root, laws.behind(root))).cpu()
        return int(calibration.probabilities(said[:count]).argmax()), said[count:].tolist()[0]

    return decide


def selector(hidden: tuple[int, int], vocabulary_size: int, device: torch.device, generator: torch.Generator) -> Work:
    """A selector over the default action set, on ``device``: the place of the action chosen, and the squared distance. ``hidden``
    are sizes of the target's and the draft's states, 0 for a selector that reads none."""
    layers = (1,) if hidden[0] else ()
    spec = SelectionSpec(layers, layers, *hidden, ActionSet().actions)
    rerun = Rerun(SelectorNetwork(spec).eval().to(device).served, maker_for(device))
    random = partial(torch.rand, generator=generator)
    logits_2V = random(2, vocabulary_size).to(device)
    target_V = random(vocabulary_size).softmax(0).to(device)
    target_1D, draft_21D = (
        (random(1, hidden[0]).to(device), random(2, 1, hidden[1]).to(device)) if layers else (None, None)
    )
    seconds_A = np.ones(len(spec.actions))

    @torch.inference_mode()
    def choose() -> tuple[int, float]:
        laws_2V = processed_law(logits_2V, SAMPLED)
        models = BothModels(target_V, laws_2V[0], draft_21D)
        law = NextLaw(Root(32, 1, SAMPLED, None, target_1D), SAMPLED, 0, logits_2V[1], laws_2V[1])
        seen = TreeRoot(law, lambda: models)
        features = assembled(state_of(seen) if spec.layers else None, scalars_of(seen))
        said = rerun(features.unsqueeze(0)).tolist()
        return int((np.exp(said[: len(seconds_A)]) - seconds_A).argmax()), said[len(seconds_A)]

    return choose


def stop_model(inputs: str, spec: StopSpec, laws: Laws, device: torch.device, generator: torch.Generator) -> Work:
    """A stop model over ``inputs``, with MCSD's hidden sizes: the logit, the squared distance and the features' sketch."""
    shape = NetworkShape(hidden_sizes=(64,) if inputs == LAW else (512, 128))
    network = StopNetwork(spec.size(inputs), shape).eval().to(device)
    rerun = Rerun(network.served, maker_for(device))
    hidden_KD = torch.rand(1, spec.draft_hidden_size, generator=generator).to(device)

    @torch.inference_mode()
    def ask() -> list[float]:
        law = laws.behind(Root(32, 1, SAMPLED, None), hidden_KD)
        return rerun(features_of(law, spec, inputs).unsqueeze(0)).tolist()

    return ask


def survival_model(positions: int, laws: Laws, device: torch.device) -> Work:
    """The survival model about ``positions`` drafted tokens: what is said of the last one."""
    look = Rerun(token_numbers, maker_for(device))
    answering = Answering(SurvivalNetwork(HIDDEN).eval())
    drawn = DrawnToken(laws.behind(Root(32, 1, SAMPLED, None)), torch.zeros((), dtype=torch.int64, device=device))

    @torch.inference_mode()
    def ask() -> float:
        course, chance = Course(1, 0.0, 0.5, 0.0), 1.0
        for _ in range(positions):
            said = answering.of_one(course.add(drawn.numbers(look), True))
            chance *= UNCHANGED.probability(said.now) * UNCHANGED.probability(said.following)
        return chance

    return ask


class Upkeep:
    """A tree of ``guessed`` nodes and its pool, made anew for every call."""

    def __init__(self, guessed: int, vocabulary_size: int, device: torch.device, generator: torch.Generator) -> None:
        self._guessed = guessed
        self._logits_RV = torch.rand(guessed, vocabulary_size, generator=generator).to(device)
        self._request = Request([0], 1, GUESSING.growth, Randomness(0), frozenset(), vocabulary_size, (), False)
        self.prepare()

    def prepare(self) -> None:
        """The tree as it stands before a pass, and a pool that saw the same pass before."""
        self._tree = ProgressiveTree(GUESSING, self._request)
        self._plant()
        self.take()
        self._plant()

    def take(self) -> int:
        """What happens in front of a pass and behind it; the number of candidates."""
        candidates = self._tree.candidates(0)
        tree = levels(candidates, LONGEST_PATH)
        tree.token_list, tree.parent_list  # noqa: B018 (what the pass is fed)
        rows = self._tree.rows()
        self._tree.follow(self._logits_RV)
        following = [self._guessed + token for token in rows.tokens]
        self._tree.learn(PassOutcome(0, candidates, [0] * (1 + tree.num_nodes), following, [1]))
        return tree.num_nodes

    def _plant(self) -> None:
        nodes = [Node(0)]
        for token in range(1, self._guessed):
            nodes.append(nodes[(token - 1) // 2].add(token))
        self._tree.first = nodes[:1]


def decision_cells(
    pair: ModelPair, config: LatencyConfig, generator: torch.Generator, targets: Passes, drafts: Passes
) -> list[Cell]:
    """Cells of all tables but ``guessing``: a head on as many numbers as ``features`` say, a selector without states and with the
    last hidden state of each model, a stop model that reads laws and one that reads the draft's last hidden state.

    A pass of the target precedes what is asked once a round; another question and a draft step what is asked at every step."""
    assert pair.draft is not None
    vocabulary_size, device = pair.target.vocabulary_size, pair.target.device
    laws = Laws(vocabulary_size, device, generator)
    target, draft = (len(model.embedding(0)) for model in (pair.target, pair.draft))  # sizes of their hidden states
    stops = StopSpec((1,), draft, TOP)

    def once(table: str, work: Work, **at: int) -> Cell:
        return Cell.of_work(table, work, device, partial(targets.chain, 1), **at)

    def often(table: str, work: Work, **at: int) -> Cell:
        def before() -> None:
            begin_round(targets, drafts)
            work()
            drafts.level(1)

        return Cell.of_work(table, work, device, before, **at)

    cells = [once("predictor", head(count, laws, device, generator), features=count) for count in config.features]
    for sizes in ((0, 0), (target, draft)):
        chosen = selector(sizes, vocabulary_size, device, generator)
        cells.append(once("selection", chosen, features=sizes[0] + 2 * sizes[1]))
    cells += [often("reading", partial(laws.read, bool(too)), entropy=too) for too in (0, 1)]
    for inputs in (LAW, BEFORE) if draft > TOP + 1 else (LAW,):
        asked = stop_model(inputs, stops, laws, device, generator)
        cells.append(often("stopping", asked, features=stops.size(inputs)))
    return cells + [often("survival", survival_model(count, laws, device), positions=count) for count in (1, 4)]


def guessing_cells(
    target: LanguageModel, config: LatencyConfig, generator: torch.Generator, evict: Callable[[], None]
) -> list[Cell]:
    """Cells of the table ``guessing``. ``evict`` empties the caches as a pass does."""

    def cell(count: int) -> Cell:
        upkeep = Upkeep(count, target.vocabulary_size, target.device, generator)

        def before() -> None:
            upkeep.prepare()
            evict()

        return Cell.of_work("guessing", upkeep.take, target.device, before, guessed=count)

    return [cell(count) for count in config.guessed]
