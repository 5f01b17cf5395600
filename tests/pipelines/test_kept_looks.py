"""Looks that were taken at a version: which records are some, and what they leave to the next one."""

import pytest

from pipelines.promotion.plan import next_look, require_new

UNTRIED = {
    "version": 2,
    "passed": False,
    "verdict": "refused",
    "look": 1,
    "smallest_gain": None,
    "evidence_sha256": "x",
}
OPEN_LOOK = UNTRIED | {"verdict": "inconclusive", "smallest_gain": 0.05}


def test_only_what_was_measured_counts_as_a_look():
    assert next_look([], "p-hrad", "1", 3) == next_look([UNTRIED, UNTRIED], "p-hrad", "1", 3) == 1
    assert next_look([UNTRIED, OPEN_LOOK], "p-hrad", "1", 3) == 2
    require_new({"look": 1, "evidence_sha256": "y"}, [UNTRIED])
    require_new({"look": 1, "evidence_sha256": "x"}, [OPEN_LOOK])
    require_new({"look": 2, "evidence_sha256": "y"}, [OPEN_LOOK])
    with pytest.raises(ValueError, match="look 1 was taken already"):
        require_new({"look": 1, "evidence_sha256": "y"}, [OPEN_LOOK])
    with pytest.raises(ValueError, match="was refused at look 1"):
        next_look([OPEN_LOOK | {"verdict": "refused"}], "p-hrad", "1", 3)


def test_past_the_plan_nothing_is_measured():
    last = OPEN_LOOK | {"look": 3}
    with pytest.raises(ValueError, match="documents exhausted: the plan has no further look"):
        next_look([OPEN_LOOK, last], "p-hrad", "1", 3)
    assert next_look([OPEN_LOOK, last], "p-hrad", "1", 4) == 4
