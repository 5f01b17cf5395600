"""The shape that a small draft is inflated to, so that the pair costs what real pairs cost.

    cost(model) = weights + LAYER · layers                     of a pass over one token, in weights read
    cost(target) / cost(draft) = cost_ratio                    solved for the draft's feed-forward size

A pass over one token waits for its weights, and each layer costs some twenty small operations besides. On an AMD Zen 3 in
float32 a layer's operations take as long as 1.1 million of its weights. Machines with faster weights have slower layers in this
unit, which changes c little as long as the draft has fewer layers in the proportion in which it has fewer weights: c lies
between both proportions. What it is on a machine, its latency profile says.
"""

from dataclasses import dataclass
from typing import Annotated

from pipelines.builtin.inflation import InflatedShape
from predictors.config import Checked, above

LAYER = 1.2e6  # weights that are read in the time of a layer's other work
STEP = 64  # feed-forward sizes are multiples of it


@dataclass(frozen=True)
class InflatedDraft(Checked):
    """Size of the inflated draft but for its feed-forward, which follows from ``cost_ratio``: draft steps in a target pass."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    cost_ratio: Annotated[float, above(1)]  # a draft costs less than its target

    def shape(self, target: InflatedShape, vocabulary: int, least: int) -> InflatedShape:
        """The draft's whole shape beside ``target``.

        Parameters
        ----------
        least
            Feed-forward size of the small draft, which has to fit.

        Raises
        ------
        ValueError
            If the ratio is out of reach with these layers: names the largest that fits.
        """
        feed_forward = STEP * round(self._feed_forward(target, vocabulary) / STEP)
        whole = self._with(feed_forward)
        if feed_forward < least:
            most = cost(target, vocabulary) / cost(self._with(least), vocabulary)
            raise ValueError(
                f"cost_ratio {self.cost_ratio} needs a feed-forward of {feed_forward}, and the small draft has "
                f"{least}. With {self.layers} layers of {self.hidden} at most {most:.1f} fits: lower it, hidden or layers."
            )
        return whole

    def _with(self, feed_forward: int) -> InflatedShape:
        return InflatedShape(self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim, feed_forward)

    def _feed_forward(self, target: InflatedShape, vocabulary: int) -> float:
        rest = cost(target, vocabulary) / self.cost_ratio - cost(self._with(0), vocabulary)
        return rest / (3 * self.hidden * self.layers)


def cost(shape: InflatedShape, vocabulary: int) -> float:
    """Of a pass over one token, in weights read; the head is the embedding's own matrix."""
    return shape.layers * (shape.layer_weights + LAYER) + vocabulary * shape.hidden
