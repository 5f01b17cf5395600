import pytest

from pipelines.inflation import LAYER, STEP, InflatedDraft, InflatedShape, cost

TARGET = InflatedShape(hidden=512, layers=12, heads=8, kv_heads=8, head_dim=64, feed_forward=1408)
VOCABULARY, LEAST = 2048, 512


def draft(ratio, **changes):
    return InflatedDraft(
        **{"hidden": 448, "layers": 2, "heads": 7, "kv_heads": 7, "head_dim": 64} | changes, cost_ratio=ratio
    )


@pytest.mark.parametrize("ratio", [6.0, 7.0, 8.0])
def test_the_draft_costs_what_the_ratio_says_up_to_a_step_of_its_feed_forward(ratio):
    shape = draft(ratio).shape(TARGET, VOCABULARY, LEAST)
    step = 3 * shape.hidden * shape.layers * STEP / 2
    assert abs(cost(TARGET, VOCABULARY) / ratio - cost(shape, VOCABULARY)) <= step
    assert shape.feed_forward % STEP == 0


def test_cost_counts_weights_and_layers():
    assert cost(TARGET, VOCABULARY) == 12 * (4 * 512 * 512 + 3 * 512 * 1408 + LAYER) + 2048 * 512


def test_a_ratio_out_of_reach_is_refused_with_the_largest_that_fits():
    with pytest.raises(ValueError, match=r"cost_ratio 15.0 needs .* the small draft has 512.* at most 8\.\d fits"):
        draft(15.0).shape(TARGET, VOCABULARY, LEAST)
    with pytest.raises(ValueError, match="must be > 1, got 1.0"):
        draft(1.0)
