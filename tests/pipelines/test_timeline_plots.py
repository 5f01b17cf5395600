"""The pipeline diagram: what it hatches, where its axis ends, what it writes beside the lanes."""

import matplotlib.colors
import pytest

from pipelines.reporting import plots
from pipelines.reporting.branch_folder import read_timelines
from pipelines.reporting.timeline_plots import LOST, lost_shares, timeline_figure, timeline_text
from tests.pipelines.hand_made_branches import (
    PREFILL,
    TIMELINES_BY_ARM,
    beside_round,
    turns_round,
    write_branches,
)


@pytest.fixture(scope="module")
def timelines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timelines")
    write_branches(folder)
    return read_timelines(folder)


@pytest.fixture(scope="module")
def figure(timelines):
    return plots.draw(timeline_figure, timelines)


def bars(axes, colour):
    """Extents in milliseconds of the bars of one colour."""
    drawn = []
    for collection in axes.collections:
        if matplotlib.colors.same_color(collection.get_facecolor()[0], colour):
            drawn += [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in collection.get_paths()]
    return sorted(drawn)


def test_lost_shares_by_hand():
    rounds = TIMELINES_BY_ARM["specbranch-8"][1:]
    # block of 4, all accepted; 4 levels beside, of which the next round used the branch token and 2 behind it
    # nothing was drafted before the second; what was beside it is lost with its rejection
    # block of 2, both accepted; the branch point behind it was missed
    assert lost_shares(rounds) == [(0.0, 0.25), (0.0, 1.0), (0.0, 1.0)]
    assert lost_shares([turns_round(0, levels=4, accepted=1), turns_round(2, levels=3, accepted=3)]) == [
        (0.75, 1.0),  # nothing was drafted beside these passes
        (0.0, 1.0),
    ]


def test_a_rejected_block_of_an_idle_stage_is_lost_from_the_rejection_on():
    (lost,) = lost_shares([beside_round(0, levels=8, idle=4, submitted=4, accepted=1, hit=False)])
    assert lost == (0.75, 1.0)


def test_the_last_hit_is_not_counted_as_lost():
    (lost,) = lost_shares([beside_round(0, levels=8, idle=4, submitted=4, accepted=5, hit=True)])
    assert lost == (0.0, 0.0)


def test_arms_in_turn_come_first_and_every_arm_has_two_lanes(figure):
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "static γ=3, sequential",
        "SpecBranch γ=8, virtual clock",
    ]
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == ["draft", "target"]


def test_hatched_work_is_the_end_of_each_stretch(figure):
    turns, beside = figure.axes
    assert bars(turns, LOST) == [pytest.approx((1000 - 0.75 * 750, 1000))]
    first, second, third = bars(beside, LOST)
    assert first == pytest.approx((250 + 0.75 * 400, 650))  # a quarter of what was drafted beside the pass
    assert second == pytest.approx((1250, 1650)) and third == pytest.approx((2250, 2650))


def test_time_begins_behind_the_prefill_and_rounds_are_marked(figure):
    turns, beside = figure.axes
    assert bars(beside, plots.PHASE_COLOURS["target"])[0] == pytest.approx((250, 750))
    assert [line.get_xdata()[0] for line in beside.lines] == pytest.approx([1000, 2000, 3000])
    assert [text.get_text() for text in beside.texts] == ["+6", "+3", "+3"]
    assert [text.get_position()[0] for text in beside.texts] == pytest.approx([500, 1500, 2500])
    assert beside.get_xlim() == pytest.approx((0, 3000)) == turns.get_xlim()  # the arm that is through first


def test_the_axis_ends_with_twelve_rounds_of_the_fastest():
    fast = [PREFILL, *(beside_round(1 + i, levels=4, submitted=3, accepted=4, hit=True) for i in range(20))]
    slow = [PREFILL, *(turns_round(1 + 2 * i, levels=3, accepted=3) for i in range(12))]
    figure = plots.draw(timeline_figure, {"chain-3": slow, "pearl-4": fast})
    assert figure.axes[0].get_xlim() == pytest.approx((0, 12_000))
    assert len(figure.axes[0].texts) == 6 and len(figure.axes[1].texts) == 12


def test_the_diagram_in_words(timelines):
    text = timeline_text(timelines)
    assert "static γ=3, sequential: 2 rounds, target waiting 50 %" in text
    assert "SpecBranch γ=8, virtual clock: 3 rounds, target waiting 25 %" in text
    assert timeline_text({}) == "" == timeline_text({"pearl-4": [PREFILL]})
