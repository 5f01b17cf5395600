"""The bare replay repeats the passes of a decode, and recording them changes nothing."""

from itertools import count

import pytest

from pipelines.measuring.bare_replay import RecordedModel, record
from runtime import ModelPair, Randomness, build_decoder
from tests.toys import tiny_llama


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1, layers=1))


class CountingModel:
    """A model whose passes are counted: (name, rows) in order."""

    def __init__(self, model, name, passes):
        self.model, self.name, self.passes = model, name, passes

    def __getattr__(self, name):
        return getattr(self.model, name)

    def open(self, *arguments):
        state, outer = self.model.open(*arguments), self

        class Counting:
            keep = staticmethod(state.keep)

            def forward(self, tokens, parents=None, last=None):
                outer.passes.append((outer.name, list(map(int, tokens))))
                return state.forward(tokens, parents, last)

        return Counting()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["autoregressive", "chain-2"])
def test_replay_repeats_the_passes_of_the_decode(pair, name, temperature):
    passes: list = []
    counted = ModelPair(CountingModel(pair.target, "target", passes), CountingModel(pair.draft, "draft", passes))
    chain = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}, "verifier": "block"}
    decoder = build_decoder(counted, {"method": "autoregressive"} if name == "autoregressive" else chain)
    options = {"max_new_tokens": 12, "temperature": temperature}
    replay = record(decoder, [1, 2, 3], randomness=Randomness(0), **options)
    recorded = list(passes)
    passes.clear()
    replay()
    assert passes == recorded
    passes.clear()
    decoder.generate([1, 2, 3], randomness=Randomness(0), **options)
    assert passes == recorded
    assert {who for who, _ in recorded} == ({"target"} if name == "autoregressive" else {"target", "draft"})


def test_recording_does_not_change_the_text(pair):
    decoder = build_decoder(pair, {"method": "autoregressive"})
    recorded = ModelPair(RecordedModel(pair.target, [], count()), None)
    again = build_decoder(recorded, {"method": "autoregressive"})
    assert again.generate([1, 2], max_new_tokens=8).tokens == decoder.generate([1, 2], max_new_tokens=8).tokens
