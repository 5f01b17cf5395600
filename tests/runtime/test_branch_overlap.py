"""Where the draft runs never shows in the text: one job after the other, or in a thread."""

import pytest
import torch

from predictors.controllers.unlearned import Confidence
from runtime import ModelPair, Randomness, build_decoder
from tests.branches import branch_decoder, shaken_llama, sharp_llama
from tests.bundles import random_bundle
from tests.greedy import greedy_text

PROMPT, OTHER = [3, 1, 4], [7, 7, 2, 9]
OPTIONS = {"gamma": 3, "k_max": 2}
OVERLAPS = ("none", "threads")


@pytest.fixture(scope="module")
def pair():
    """A draft that is right in part, at temperatures 0 and 1."""
    return ModelPair(sharp_llama(2, sharpness=6), shaken_llama(2, sharpness=6))


@pytest.fixture(scope="module")
def text(pair):
    return greedy_text(pair.target.model, PROMPT, 40)


# ---- the same text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_text_wherever_the_draft_runs(pair, text, temperature):
    inside = {"controller": {"kind": "confidence", "epsilon": 0.2}, **OPTIONS}
    texts, rounds = [], []
    for overlap in OVERLAPS:
        decoder = branch_decoder(pair, **inside, overlap=overlap)
        for seed in range(2):
            randomness = Randomness(seed)  # one source for requests one after the other
            outs = [
                decoder.generate(prompt, max_new_tokens=30, temperature=temperature, randomness=randomness)
                for prompt in (PROMPT, OTHER, PROMPT)
            ]
            texts.append([out.tokens for out in outs])
            rounds.append([[(item.drafted, item.accepted) for item in out.rounds] for out in outs])
    assert texts[:2] == texts[2:] and rounds[:2] == rounds[2:]
    if temperature == 0:
        assert texts[0][0] == text[:30]
    else:
        assert texts[0][0] != texts[0][2] and texts[0] != texts[1]


def test_a_heads_features_reach_the_thread(pair, tmp_path):
    controller = {"kind": "hrad", "bundle": str(random_bundle(tmp_path / "b", pair, "extended", gamma=3))}
    outs = []
    for overlap in OVERLAPS:
        decoder = build_decoder(
            pair, {"preset": "specbranch", "gamma": 3, "controller": controller, "overlap": overlap}
        )
        outs.append(decoder.generate(PROMPT, max_new_tokens=30, temperature=1.0, randomness=Randomness(1)))
    assert outs[0].tokens == outs[1].tokens
    assert [record.submitted for record in outs[0].rounds] == [record.submitted for record in outs[1].rounds]
    assert len({record.submitted for record in outs[0].rounds}) > 1


def test_two_threads_save_nothing_that_the_wall_does_not_show(pair):
    out = branch_decoder(pair, **OPTIONS, overlap="threads").generate(PROMPT, max_new_tokens=30)
    assert all(record.overlapped == 0 and record.concurrent and record.seconds["wait"] >= 0 for record in out.rounds)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_generate_takes_the_decoder(pair, text, overlap):
    decoder = branch_decoder(pair, **OPTIONS, overlap=overlap)
    ids = pair.target.model.generate(
        torch.tensor([PROMPT]), custom_generate=decoder, do_sample=False, max_new_tokens=20
    )
    assert ids[0].tolist() == [*PROMPT, *text[:20]]


# ---- several requests


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_requests_to_one_decoder_take_turns(pair, overlap):
    decoder = branch_decoder(pair, **OPTIONS, overlap=overlap)
    alone = [decoder.generate(prompt, max_new_tokens=20).tokens for prompt in (PROMPT, OTHER)]
    requests = [decoder.stream(prompt, max_new_tokens=20) for prompt in (PROMPT, OTHER)]
    texts, going = ([], []), {0, 1}
    while going:
        for index in sorted(going):
            step = next(requests[index], None)
            texts[index].extend([] if step is None else step.tokens)
            going -= {index} if step is None else set()
    assert list(texts) == alone


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_request_that_is_given_up_leaves_the_decoder_usable(pair, text, overlap):
    decoder = branch_decoder(pair, **OPTIONS, overlap=overlap)
    for length in range(1, 5):
        steps = decoder.stream(OTHER, max_new_tokens=40)
        for _ in range(length):
            next(steps)
        steps.close()
        assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]


class Failing(Confidence):
    """Decides as `Confidence`, and fails at a branch point where it is ``told`` to."""

    told = False

    def start(self, settings):
        session = super().start(settings)
        session.branch_count = self.branch_count
        return session

    def branch_count(self, law):
        if self.told:
            raise ArithmeticError("the draft is far from home")


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_an_error_of_the_draft_reaches_the_caller_and_leaves_the_decoder_usable(pair, text, overlap):
    decoder = branch_decoder(pair, **OPTIONS, overlap=overlap)
    controller = Failing(0.2)
    decoder.draft = (*decoder.draft[:2], controller)
    controller.told = True
    threads = torch.get_num_threads()
    with pytest.raises(ArithmeticError, match="far from home"):
        decoder.generate(PROMPT, max_new_tokens=20)
    assert torch.get_num_threads() == threads
    controller.told = False
    assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]
