"""Picture ``timelines``: what it hatches, where its axis ends, what it writes above the lanes."""

import matplotlib.colors
import pytest

from pipelines.measuring.names import TIMELINES
from pipelines.outputs import write_json
from pipelines.reporting import plots
from pipelines.reporting.branches import LOST, drawn, lost_shares, timelines
from tests.pipelines.hand_made_branches import PREFILL, TIMELINES_BY_ARM, beside_round, turns_round


@pytest.fixture(scope="module")
def panels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timelines")
    write_json(folder / TIMELINES, TIMELINES_BY_ARM)
    (picture,) = timelines(folder, ["specbranch-8"])
    return {axes.get_title(loc="left"): axes for axes in picture.figure.axes}


def bars(axes, colour):
    """Extents in milliseconds of the bars of one colour."""
    shown = [one for one in axes.collections if matplotlib.colors.same_color(one.get_facecolor()[0], colour)]
    vertices = [path.vertices[:, 0] for collection in shown for path in collection.get_paths()]
    return sorted((x.min(), x.max()) for x in vertices)


def test_lost_shares_by_hand():
    """Block of 4, all accepted, and of 4 levels during its pass the next round used 1 + 2; nothing was drafted before the second,
    which was rejected; a block of 2, accepted, whose branch point was missed."""
    assert list(lost_shares(TIMELINES_BY_ARM["specbranch-8"][1:])) == [(0.0, 0.25), (0.0, 1.0), (0.0, 1.0)]
    sequential = [turns_round(0, levels=4, accepted=1), turns_round(2, levels=3, accepted=3)]
    assert list(lost_shares(sequential)) == [(0.75, 1.0), (0.0, 1.0)], "nothing was drafted during these passes"


@pytest.mark.parametrize(("accepted", "hit", "lost"), [(1, False, (0.75, 1.0)), (5, True, (0.0, 0.0))])
def test_the_last_round(accepted, hit, lost):
    """A rejected block is lost from the rejection on; what becomes of a branch that was kept is unknown."""
    record = beside_round(0, levels=8, idle=4, submitted=4, accepted=accepted, hit=hit)
    assert list(lost_shares([record])) == [lost]


def test_hatched_work_is_the_end_of_each_stretch(panels):
    sequential, overlapping = panels["chain, γ=3"], panels["SpecBranch γ=8, virtual clock"]
    assert bars(sequential, LOST) == [pytest.approx((1000 - 0.75 * 750, 1000))]
    first, second, third = bars(overlapping, LOST)
    assert first == pytest.approx((250 + 0.75 * 400, 650)), "a quarter of what was drafted during the pass"
    assert second == pytest.approx((1250, 1650)) and third == pytest.approx((2250, 2650))


def test_time_begins_after_the_prefill_and_rounds_are_marked(panels):
    axes = panels["SpecBranch γ=8, virtual clock"]
    assert bars(axes, plots.PHASE_COLOURS["target"])[0] == pytest.approx((250, 750))
    assert [line.get_xdata()[0] for line in axes.lines] == pytest.approx([1000, 2000, 3000])
    assert [text.get_text() for text in axes.texts] == ["+6", "+3", "+3"]
    assert axes.get_xlim() == pytest.approx((0, 3000)), "the arm that is through first"


def test_the_axis_ends_with_twelve_rounds_of_the_fastest():
    fast = [beside_round(1 + i, levels=4, submitted=3, accepted=4, hit=True) for i in range(20)]
    slow = [turns_round(1 + 2 * i, levels=3, accepted=3) for i in range(12)]
    first, second = plots.draw(drawn, {"chain-3": slow, "pearl-4": fast}).axes
    assert first.get_xlim() == pytest.approx((0, 12_000))
    assert len(first.texts) == 6 and len(second.texts) == 12


def test_only_chosen_arms_are_drawn(tmp_path):
    """Neither those of another γ nor the variants of one method; other arms always."""
    rounds = [PREFILL, turns_round(1, levels=4, accepted=1)]
    arms = ("chain-3", "pearl-2", "pearl-4", "specbranch-paper-8")
    write_json(tmp_path / TIMELINES, dict.fromkeys(arms, rounds))
    (picture,) = timelines(tmp_path, ["pearl-4", "specbranch-paper-8"])
    assert len(picture.figure.axes) == 2


def test_missing_and_damaged_timelines(tmp_path):
    assert not list(timelines(tmp_path, []))
    (tmp_path / TIMELINES).write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        list(timelines(tmp_path, []))
