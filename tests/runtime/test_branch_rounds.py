"""A `ReplayedRound` read off a round's record asks for exactly the draft passes that the real decoder makes."""

import pytest

from predictors.latency.prices import require_possible
from predictors.rounds import ReplayedRound
from runtime import ModelPair, Randomness, build_decoder
from tests.toys import TableModel

GAMMA, NEW_TOKENS = 4, 40


class NotedDraft(TableModel):
    """Notes how many tokens each pass is over."""

    def __init__(self) -> None:
        super().__init__(6, seed=0, sharpness=1.2)
        self.passes: list[int] = []

    def open(self, max_length, layers=()):
        state = super().open(max_length, layers)
        real = state.forward

        def forward(tokens, parents=None, last=None):
            self.passes.append(len(tokens))
            return real(tokens, parents, last)

        state.forward = forward
        return state


def rounds(controller, temperature, draft_stage="idle"):
    """Every round of some requests: what it was made of, and the sizes of its draft passes."""
    model = NotedDraft()
    settings = {"gamma": GAMMA, "k_max": 3, "overlap": "none", "controller": controller, "draft_stage": draft_stage}
    pair = ModelPair(TableModel(6, seed=0, sharpness=1.3), model)
    decoder = build_decoder(pair, {"method": "branch_parallel", **settings})
    made = []
    for seed in range(6):
        steps = decoder.stream([1, 2], max_new_tokens=NEW_TOKENS, temperature=temperature, randomness=Randomness(seed))
        previous, context = next(steps).record, 2
        for step in chained(steps, model.passes):
            record = step.record
            round_ = ReplayedRound(**vars(record), context=context, survived=not previous.ends_segment)
            require_possible(round_)
            assert record.passes == len(model.passes)
            made.append((round_, [*model.passes]))
            previous, context = record, context + record.emitted
        assert context == 2 + NEW_TOKENS - 1
    return made


def chained(steps, *notes):
    """The steps, with notes of that step alone."""
    while True:
        for note in notes:
            note.clear()
        try:
            yield next(steps)
        except StopIteration:
            return


def require_passes(made):
    """Idle ones, the branch point's where its law is unknown, then one for every level, over as many tokens as it has rows."""
    for round_, passes in made:
        point = bool(round_.candidates) and not round_.law_known
        assert len(passes) == round_.idle_passes + point + round_.grown_levels
        grown = passes[len(passes) - round_.grown_levels :]
        assert sum(grown) == pytest.approx(round_.rows * round_.grown_levels)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("controller", [{"kind": "fixed"}, {"kind": "confidence", "epsilon": 0.5}])
def test_the_passes_of_a_round_are_those_of_its_composition(controller, temperature):
    made = rounds(controller, temperature)
    assert len(made) > 40
    require_passes(made)
    if controller["kind"] == "confidence":
        known = [(round_, passes) for round_, passes in made if round_.law_known]
        assert {round_.survived for round_, _ in known} == {False, True}
        # the wrong variants: no pass for the law that idle drafting stopped at, or one for retention's, too
        assert any(len(passes) != round_.idle_levels + round_.grown_levels for round_, passes in known)
        assert any(len(passes) != round_.idle_levels + 1 + round_.grown_levels for round_, passes in known)


def test_branches_from_the_first_token_on_are_grown_without_idle_passes():
    made = rounds({"kind": "fixed"}, 1, draft_stage="preverify")
    require_passes(made)
    assert all(round_.idle_passes == 0 for round_, _ in made)
