"""What a benchmark's table says about rounds, counted by hand."""

import pytest

from pipelines.measuring.measurement_table import accepted_histogram, uncut_histogram
from predictors.rounds import RoundRecord


def chains(*rounds):
    return [RoundRecord(drafted=drafted, accepted=accepted) for drafted, accepted in rounds]


@pytest.mark.parametrize(
    ("rounds", "all_rounds", "uncut"),
    [
        ([], [0], [0]),
        ([(0, 0), (0, 0)], [2], [2]),  # plain decoding
        ([(3, 0), (3, 3), (3, 1), (3, 3)], [1, 1, 0, 2], [1, 1, 0, 2]),
        ([(3, 0), (3, 2), (3, 0), (1, 1)], [2, 1, 1], [2, 0, 1, 0]),  # the budget cuts the last round of a static chain
        ([(3, 1), (3, 1), (0, 0)], [1, 2], [0, 2, 0, 0]),
        ([(2, 0), (4, 1), (1, 1), (4, 0)], [2, 2], [1, 1, 0, 0, 0]),  # a controller's lengths: the longest counts
    ],
)
def test_uncut_rounds_are_those_that_drafted_as_much_as_any(rounds, all_rounds, uncut):
    assert accepted_histogram(chains(*rounds)) == all_rounds
    assert uncut_histogram(chains(*rounds)) == uncut


def test_a_tree_is_as_long_as_its_levels_not_as_its_nodes():
    rounds = [
        RoundRecord(drafted=6, levels=3, accepted=2),
        RoundRecord(drafted=4, levels=3, accepted=1),  # rollouts met
        RoundRecord(drafted=6, levels=2, accepted=2),  # cut short
    ]
    assert uncut_histogram(rounds) == [0, 1, 1, 0]
