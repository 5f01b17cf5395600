"""One decoder of several, by the request's sampling settings: what a tuned bundle serves.

Every one of them is lossless, so a request at settings that none was tuned for is served by the nearest, in temperature first.
"""

from collections.abc import Sequence

from predictors.controllers import build_controller
from predictors.sampling import SamplingSettings
from runtime.decoding.base import Decoder
from runtime.decoding.run import Run
from runtime.pair import ModelPair
from runtime.request import Request


class RoutedDecoder(Decoder):
    """``routes``: a decoder for each of some sampling settings; at least one."""

    def __init__(self, pair: ModelPair, routes: Sequence[tuple[SamplingSettings, Decoder]]) -> None:
        super().__init__(pair, build_controller({"kind": "fixed"}), lossy=any(decoder.lossy for _, decoder in routes))
        self.routes = list(routes)

    def route(self, settings: SamplingSettings) -> Decoder:
        return min(self.routes, key=lambda route: route[0].distance(settings))[1].route(settings)

    @property
    def context_limit(self) -> int:
        return min(decoder.context_limit for _, decoder in self.routes)

    def start(self) -> None:
        for _, decoder in self.routes:
            decoder.start()

    def close(self) -> None:
        for _, decoder in self.routes:
            decoder.close()

    def _open(self, request: Request) -> Run:
        return self.route(request.settings)._open(request)
