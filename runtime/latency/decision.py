"""Cells of what learned controllers compute.

    reading    entropy    the confidence of a draft's law, read by the host; 1: and its entropy; behind such a reading and a draft
                          step, as most of a round's are
    predictor  features   one decision of H-RAD's head (`predictors.network`) on so many numbers, the draft's first law among what
                          they are made of; class and distance from the training rows are read by the host
    selection  features   one choice of a delayed-tree selector (`predictors.selection`) from hidden states of so many numbers (0:
                          none) and both models' laws over the vocabulary
    stopping   features   one question to a stop model (`predictors.stopping`): on a draft's law (few numbers) or on its state
                          (many); behind another question and a draft step, as most of a round's are
    survival   positions  one decision of the survival model (`predictors.survival`) about so many drafted tokens, likewise

Weights, states and laws are random.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from predictors.actions import ActionSet
from predictors.calibration import Calibration
from predictors.controllers.base import Rerun
from predictors.features import FEATURE_SETS, FeatureSpec, served_features
from predictors.network import HRADNetwork, ServedHead
from predictors.sampling import SamplingSettings
from predictors.selection.features import SelectionSpec, assembled, scalars_of, state_of
from predictors.selection.network import SelectorNetwork, ServedSelector
from predictors.signals import BothModels, DrawnToken, NextLaw, Root, TreeRoot, token_numbers
from predictors.stopping.features import BEFORE, LAW, StopSpec, features_of
from predictors.stopping.network import NetworkShape, StopNetwork, served_logits
from predictors.stopping.rule import StopCalibration
from predictors.survival.host import HostCourse, HostNetwork
from predictors.survival.network import SurvivalNetwork
from runtime.latency.cells import Cell, timed
from runtime.laws import processed_law
from runtime.pair import ModelPair
from runtime.recorder import recorder_for

SAMPLED = SamplingSettings(0.6)
TOP = 10  # probabilities that a stop model reads of a law
UNCHANGED = StopCalibration()
HIDDEN = 16  # units of a survival model
TAPPED = 4  # hidden states of the target that a head reads, the embedding beside them
LEAST_FEATURES = len(FEATURE_SETS["extended"]) + TAPPED + 1  # of a head, each state being one number


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


class Decision:
    """A head over the extended features, ``num_features`` numbers in all, on ``device``."""

    def __init__(self, num_features: int, laws: Laws, device: torch.device, generator: torch.Generator) -> None:
        scalars = len(FEATURE_SETS["extended"])
        hidden = (num_features - scalars) // (TAPPED + 1)
        embedding = num_features - scalars - TAPPED * hidden
        self._spec = FeatureSpec("extended", tuple(range(TAPPED)), hidden, embedding, gamma=8)
        served = ServedHead(HRADNetwork(self._spec.state_size, scalars, None).eval(), device)
        self._rerun, self._calibration = Rerun(served, recorder_for(device)), Calibration()
        self._hidden_KD = torch.randn(TAPPED, hidden, generator=generator).to(device)
        self._embedding_E = torch.randn(embedding, generator=generator).to(device)
        self._laws = laws

    @torch.inference_mode()
    def take(self) -> tuple[int, float]:
        """The likeliest class and the squared distance."""
        root = Root(32, 1, SAMPLED, None, self._hidden_KD, self._embedding_E)
        said = self._rerun(served_features(self._spec, root, self._laws.behind(root))).cpu()
        count = len(self._calibration.bias)
        return int(self._calibration.probabilities(said[:count]).argmax()), said[count:].tolist()[0]


class Choice:
    """A selector over the default action set, on ``device``. ``hidden`` are sizes of the target's and the draft's states, 0 for a
    selector that reads none."""

    def __init__(
        self, hidden: tuple[int, int], vocabulary_size: int, device: torch.device, generator: torch.Generator
    ) -> None:
        self.features = hidden[0] + 2 * hidden[1]
        layers = (1,) if hidden[0] else ()
        self._spec = SelectionSpec(layers, layers, *hidden, ActionSet().actions)
        served = ServedSelector(SelectorNetwork(self._spec).eval(), device)
        self._rerun = Rerun(served.row, recorder_for(device))
        random = partial(torch.rand, generator=generator)
        self._logits_2V = random(2, vocabulary_size).to(device)
        self._target_V = random(vocabulary_size).softmax(0).to(device)
        self._states = (random(1, hidden[0]).to(device), random(2, 1, hidden[1]).to(device)) if layers else (None, None)
        self._seconds_A = np.ones(len(self._spec.actions))

    @torch.inference_mode()
    def take(self) -> tuple[int, float]:
        """The place of the action chosen, and the squared distance."""
        laws_2V = processed_law(self._logits_2V, SAMPLED)
        root = Root(32, 1, SAMPLED, None, self._states[0])
        models = BothModels(self._target_V, laws_2V[0], self._states[1])
        seen = TreeRoot(NextLaw(root, SAMPLED, 0, self._logits_2V[1], laws_2V[1]), lambda: models)
        features = assembled(state_of(seen) if self._spec.layers else None, scalars_of(seen))
        *logs_A, distance = self._rerun(features).tolist()
        return int((np.exp(logs_A) - self._seconds_A).argmax()), distance


class Question:
    """A stop model over ``inputs``, with MCSD's hidden sizes, of a draft whose hidden state has ``hidden`` numbers."""

    def __init__(self, inputs: str, hidden: int, laws: Laws, device: torch.device, generator: torch.Generator) -> None:
        self._spec, self._inputs = StopSpec((1,), hidden, TOP), inputs
        self.features = self._spec.size(inputs)
        shape = NetworkShape(hidden_sizes=(64,) if inputs == LAW else (512, 128))
        network = StopNetwork(self.features, shape).eval().to(device)
        self._rerun = Rerun(partial(served_logits, network), recorder_for(device))
        self._laws = laws
        self._hidden_KD = torch.rand(1, hidden, generator=generator).to(device)

    @torch.inference_mode()
    def take(self) -> list[float]:
        """The logit, the squared distance and the features' sketch."""
        law = self._laws.behind(Root(32, 1, SAMPLED, None), self._hidden_KD)
        return self._rerun(features_of(law, self._spec, self._inputs).unsqueeze(0)).tolist()


class Outlook:
    """The survival model about ``positions`` drafted tokens."""

    def __init__(self, positions: int, laws: Laws, device: torch.device) -> None:
        self._positions = positions
        self._look = Rerun(token_numbers, recorder_for(device))
        self._network = HostNetwork(SurvivalNetwork(HIDDEN).eval())
        root, token = Root(32, 1, SAMPLED, None), torch.zeros((), dtype=torch.int64, device=device)
        self._drawn = DrawnToken(laws.behind(root), token)

    @torch.inference_mode()
    def take(self) -> float:
        """What is said of the last token."""
        course, chance = HostCourse(self._network, 1, 0.0, 0.5, 0.0), 1.0
        for _ in range(self._positions):
            said = course.add(*self._drawn.numbers(self._look), True)
            chance *= UNCHANGED.probability(said.now) * UNCHANGED.probability(said.following)
        return chance


def decision_cells(
    pair: ModelPair,
    features: Sequence[int],
    device: torch.device,
    generator: torch.Generator,
    evict: Callable[[], None],
    begin: Callable[[], None],
    step: Callable[[], None],
) -> list[Cell]:
    """Cells of all tables: a head on as many numbers as ``features`` say, a selector without states and with the last hidden
    state of each model, a stop model that reads laws and one that reads the draft's last hidden state.

    ``evict`` precedes what is asked once a round; ``begin`` and another question what is asked at every draft ``step``."""
    assert pair.draft is not None
    vocabulary_size = pair.target.vocabulary_size
    laws = Laws(vocabulary_size, device, generator)
    target, draft = (len(model.embedding(0)) for model in (pair.target, pair.draft))  # sizes of their hidden states
    decisions = [Decision(count, laws, device, generator) for count in features]
    choices = [Choice(hidden, vocabulary_size, device, generator) for hidden in ((0, 0), (target, draft))]
    kinds = (LAW, BEFORE) if draft > TOP + 1 else (LAW,)
    questions = [Question(inputs, draft, laws, device, generator) for inputs in kinds]

    def again(work: Callable[[], object]) -> Callable[[], None]:
        def before() -> None:
            begin()
            work()
            step()

        return before

    once: list[tuple[str, dict[str, int], Callable[[], object]]] = [
        *(("predictor", {"features": count}, one.take) for count, one in zip(features, decisions, strict=True)),
        *(("selection", {"features": one.features}, one.take) for one in choices),
    ]
    often: list[tuple[str, dict[str, int], Callable[[], object]]] = [
        *(("reading", {"entropy": too}, partial(laws.read, bool(too))) for too in (0, 1)),
        *(("stopping", {"features": one.features}, one.take) for one in questions),
        *(("survival", {"positions": count}, Outlook(count, laws, device).take) for count in (1, 4)),
    ]
    cells = [Cell((table,), at, timed(work, device), evict) for table, at, work in once]
    return cells + [Cell((table,), at, timed(work, device), again(work)) for table, at, work in often]
