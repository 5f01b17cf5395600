"""Cells of what is computed between passes besides drawing and verification: a query of every kind of controller, by itself.

    noise      rows       the laws and perturbed logits of a target's pass in invariant sampling, whose last row's numbers are new
    reading    entropy    the confidence of a draft's distribution, read by the host; 1: and its entropy
    predictor  features   one decision of H-RAD's head (`predictors.network`) on so many numbers, read by the host
    selection  features   one choice of a delayed-tree selector (`predictors.tree_choice`) from hidden states of so many numbers
    stopping   features   one query of a stop model (`predictors.stopping`): a distribution (few numbers) or state (many)
    survival   positions  one decision of the survival model (`predictors.survival`) about so many drafted tokens
    grow       levels     the choice of a chain of so many levels and of its leaves (`predictors.grow`)
    branch_verdict  candidates, sampled   finding the token at the branch point among as many candidates

What is run once a round comes after a pass of the target, what is run at every step after another query and a draft step.
Weights, states and distributions are random.
"""

from collections.abc import Callable
from functools import partial
from itertools import count

import numpy as np
import torch
from torch import Tensor

from predictors.actions import ActionSet
from predictors.controllers.base import Rerun
from predictors.grow import CANDIDATES, GrowCosts, Growing, GrowNetwork, GrowRule, GrowSetting, logs_of, values_of
from predictors.head import FEATURE_SETS, Calibration, FeatureSpec, HRADNetwork, served_features
from predictors.sampling import SamplingSettings
from predictors.signals import BothModels, DrawnToken, NextLaw, Root, TreeRoot, token_numbers
from predictors.stopping import BEFORE, LAW, NetworkShape, StopNetwork, StopSpec, features_of
from predictors.survival import UNCHANGED, Answering, Course, SurvivalNetwork
from predictors.tree_choice import SelectionSpec, SelectorNetwork, assembled, scalars_of, state_of
from runtime.branching.candidates import draw_at_branch_point, draw_candidates
from runtime.branching.draft import BranchConfig
from runtime.drafting.sampler import PlainSampler
from runtime.graphs import maker_for
from runtime.invariant import ExponentialNoise
from runtime.latency.cells import TAPPED, Cell, LatencyConfig
from runtime.latency.passes import Passes, begin_round
from runtime.laws import processed_law
from runtime.pair import ModelPair
from runtime.randomness import Randomness

GREEDY, SAMPLED = SamplingSettings(0.0), SamplingSettings(0.6)
TOP = 10  # probabilities that a stop model reads of a distribution
HIDDEN = 16  # units of a survival model

Work = Callable[[], object]


class Queries:
    """Queries of randomly initialised models on ``device``, about tokens of ``vocabulary_size``."""

    def __init__(self, vocabulary_size: int, device: torch.device, generator: torch.Generator) -> None:
        self._device, self._generator = device, generator
        self._size = vocabulary_size
        self._logits_V = self._random(vocabulary_size)
        self._probs_V = processed_law(self._logits_V, SAMPLED)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self._device)

    def law(self, hidden_KD: Tensor | None = None, root: Root | None = None) -> NextLaw:
        """A distribution that nobody has read, as if it had just come from the draft."""
        root = root or Root(32, 1, SAMPLED, None)
        return NextLaw(root, SAMPLED, 0, self._logits_V, self._probs_V, hidden_KD)

    def read(self, entropy: bool) -> tuple[float, ...]:
        law = self.law()
        return (float(law.confidence), float(law.entropy)) if entropy else (float(law.confidence),)

    def noise(self, rows: int) -> Work:
        logits_RV, noise, first = self._random(rows, self._size), ExponentialNoise(0), count()

        def perturb() -> Tensor:
            begin = next(first)
            return noise.perturbed(processed_law(logits_RV, SAMPLED), range(begin, begin + rows))

        return perturb

    def head(self, num_features: int) -> Work:
        """A head over the extended features, ``num_features`` numbers in all: the likeliest class and the squared distance."""
        scalars = len(FEATURE_SETS["extended"])
        hidden = (num_features - scalars) // (TAPPED + 1)
        embedding = num_features - scalars - TAPPED * hidden
        spec = FeatureSpec("extended", tuple(range(TAPPED)), hidden, embedding, gamma=8)
        rerun = self._served(HRADNetwork(spec.state_size, scalars, None))
        calibration = Calibration()
        classes = len(calibration.bias)
        root = Root(32, 1, SAMPLED, None, self._random(TAPPED, hidden), self._random(embedding))

        def decide() -> tuple[int, float]:
            outputs = rerun(served_features(spec, root, self.law(root=root))).cpu()
            return int(calibration.probabilities(outputs[:classes]).argmax()), outputs[classes:].tolist()[0]

        return decide

    def selector(self, target_size: int, draft_size: int) -> Work:
        """A selector over the default action set, from states of these sizes, 0 for one that reads none: the action's place."""
        layers = (1,) if target_size else ()
        spec = SelectionSpec(layers, layers, target_size, draft_size, ActionSet().actions)
        rerun = self._served(SelectorNetwork(spec))
        logits_2V, target_V = self._random(2, self._size), self._probs_V
        root = Root(32, 1, SAMPLED, None, self._random(1, target_size) if layers else None)
        draft_21D = self._random(2, 1, draft_size) if layers else None
        seconds_A = np.ones(len(spec.actions))

        def choose() -> int:
            laws_2V = processed_law(logits_2V, SAMPLED)
            models = BothModels(target_V, laws_2V[0], draft_21D)
            seen = TreeRoot(NextLaw(root, SAMPLED, 0, logits_2V[1], laws_2V[1]), lambda: models)
            features = assembled(state_of(seen) if spec.layers else None, scalars_of(seen))
            outputs = rerun(features.unsqueeze(0)).tolist()
            return int((np.exp(outputs[: len(seconds_A)]) - seconds_A).argmax())

        return choose

    def stop_model(self, inputs: str, spec: StopSpec) -> Work:
        """A stop model over ``inputs``, with MCSD's hidden sizes: the logit, the squared distance and the features' sketch."""
        shape = NetworkShape(hidden_sizes=(64,) if inputs == LAW else (512, 128))
        rerun = self._served(StopNetwork(spec.size(inputs), shape))
        hidden_KD = self._random(1, spec.draft_hidden_size)
        return lambda: rerun(features_of(self.law(hidden_KD), spec, inputs).unsqueeze(0)).tolist()

    def survival_model(self, positions: int) -> Work:
        """The survival model about ``positions`` drafted tokens."""
        look, answering = Rerun(token_numbers, maker_for(self._device)), Answering(SurvivalNetwork(HIDDEN).eval())
        drawn = DrawnToken(self.law(), torch.zeros((), dtype=torch.int64, device=self._device))

        def decide() -> float:
            course, chance = Course(1, 0.0, 0.5, 0.0), 1.0
            for _ in range(positions):
                answer = answering.of_one(course.add(drawn.numbers(look), True))
                chance *= UNCHANGED.probability(answer.now) * UNCHANGED.probability(answer.following)
            return chance

        return decide

    def grow_model(self, levels: int) -> Work:
        """The grow model about a chain of ``levels``: the candidates of each to submit."""
        growing, costs = Growing(GrowNetwork(HIDDEN).eval()), GrowCosts(nodes=(1.0,) * 25)
        setting = GrowSetting(GREEDY, GrowRule(0.0, 1.0), pays=True, static_length=1, costs=costs)

        def decide() -> list[int]:
            chances = []
            for level in range(levels):
                logs = logs_of(self.law().likeliest(CANDIDATES).cpu().double().numpy()).tolist()
                chances.append(growing.of_one([*logs, 0.0, 0.0, level, 0.0])[0])
            widths: list[int] = setting.widths(values_of(np.stack(chances))).tolist()
            return widths

        return decide

    def verdict(self, count: int, sampled: bool, seed: int) -> Work:
        """The verdict on ``count`` candidates at a branch point. At temperature 0 the target's one token is looked for."""
        settings, chance = SAMPLED if sampled else GREEDY, Randomness(seed)
        law = NextLaw(Root(1, 1, settings, None), settings, 0, self._logits_V, processed_law(self._logits_V, settings))
        kind = BranchConfig.branch_verifier if sampled else "match"
        candidates = draw_candidates(kind, law, count, PlainSampler(settings, chance))
        target_V = processed_law(self._logits_V + self._random(self._size) / 2, settings)
        token = int(target_V.argmax())
        if sampled:
            return lambda: draw_at_branch_point(candidates, target_V, chance)
        return lambda: candidates.place(token)

    def _served(self, network: HRADNetwork | SelectorNetwork | StopNetwork) -> Rerun:
        return Rerun(network.eval().to(self._device).served, maker_for(self._device))


def decision_cells(
    pair: ModelPair, config: LatencyConfig, generator: torch.Generator, targets: Passes, drafts: Passes
) -> list[Cell]:
    """Cells of all tables: heads on as many numbers as ``features`` say, a selector without states and with the last hidden state
    of each model, a stop model that reads distributions and one that reads the draft's last hidden state."""
    assert pair.draft is not None
    device = pair.target.device
    queries = Queries(pair.target.vocabulary_size, device, generator)
    target, draft = (len(model.embedding(0)) for model in (pair.target, pair.draft))  # sizes of their hidden states
    stops = StopSpec((1,), draft, TOP)

    def once(table: str, work: Work, **at: int) -> Cell:
        inferred = torch.inference_mode()(work)
        return Cell.of_work(table, inferred, device, partial(targets.chain, 1), **at)

    def often(table: str, work: Work, **at: int) -> Cell:
        inferred = torch.inference_mode()(work)

        def before() -> None:
            begin_round(targets, drafts)
            inferred()
            drafts.level(1)

        return Cell.of_work(table, inferred, device, before, **at)

    kinds = (LAW, BEFORE) if draft > TOP + 1 else (LAW,)
    return [
        *(once("predictor", queries.head(count), features=count) for count in config.features),
        *(
            once("selection", queries.selector(*sizes), features=sizes[0] + 2 * sizes[1])
            for sizes in ((0, 0), (target, draft))
        ),
        *(once("noise", queries.noise(rows), rows=rows) for rows in (1, 8)),
        *(often("reading", partial(queries.read, bool(too)), entropy=too) for too in (0, 1)),
        *(often("stopping", queries.stop_model(kind, stops), features=stops.size(kind)) for kind in kinds),
        *(often("survival", queries.survival_model(count), positions=count) for count in (1, 4)),
        *(often("grow", queries.grow_model(count), levels=count) for count in (1, 4)),
        *(
            once(
                "branch_verdict", queries.verdict(count, bool(sampled), config.seed), candidates=count, sampled=sampled
            )
            for sampled in (0, 1)
            for count in config.branch_rows
        ),
    ]
