"""Branch-parallel decoding over recorded passes: the text of plain calls, where branches are hit, stop and end."""

import pytest
import torch

from runtime import Randomness, build_decoder
from runtime.decoding.branch_parallel import BranchRun
from runtime.drafting import sampler
from tests.bundles import random_bundle
from tests.runtime.recording import Marked, OnDevice
from tests.runtime.test_recorded_decoding import BRANCHES, PROMPT, pair
from tests.toys import tiny_llama

MORE = BRANCHES | {
    "match": {"method": "branch_parallel", "gamma": 3, "k_max": 2, "branch_verifier": "match", "verifier": "tokenwise"},
    "some_stop": {
        "method": "branch_parallel",
        "gamma": 3,
        "k_max": 3,
        "k_rule": "const",
        "retention": "prior",
        "controller": {"kind": "confidence", "epsilon": 0.1, "min_tokens": 0},
    },
}


@pytest.fixture(scope="module")
def models():
    """A target, and a draft that is nearly the same: branches are hit."""
    target, draft = (tiny_llama(seed=0).double() for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.003 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return [target, draft]


@pytest.fixture(autouse=True)
def as_many_numbers(monkeypatch):
    """Plain verdicts draw as many numbers as recorded ones, which draw a token behind the last pending one, too."""
    verify = BranchRun._verify

    def burning(run, tree, logits):
        accepted, token, law_V = verify(run, tree, logits)
        if not run.request.settings.greedy and run.recorded is None:
            for _ in range(2 * (not tree.num_nodes) or accepted == tree.num_nodes):
                run.chance.categorical(law_V)
        return accepted, token, law_V

    monkeypatch.setattr(BranchRun, "_verify", burning)


def decoded(models, path, config, temperature, eos=()):
    decoder = build_decoder(pair(models, path), config | {"overlap": "none"})
    options = {"max_new_tokens": 40, "temperature": temperature, "eos_token_id": list(eos)}
    return decoder.generate(PROMPT, randomness=Randomness(7), **options)


def counts(out):
    return [(record.drafted, record.accepted, record.submitted, record.ends_segment) for record in out.rounds]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", MORE)
def test_texts_and_rounds_are_those_of_plain_calls(models, name, temperature, monkeypatch):
    plain = decoded(models, "compact", MORE[name], temperature)
    assert any(not record.ends_segment for record in plain.rounds), "a branch is hit"
    fell_back = []
    token = sampler.PlainSampler.token
    monkeypatch.setattr(sampler.PlainSampler, "token", lambda *given: fell_back.append(1) or token(*given))
    recorded = decoded(models, "recorded", MORE[name], temperature)
    assert (recorded.tokens, counts(recorded)) == (plain.tokens, counts(plain))
    assert bool(fell_back) == (name == "some_stop"), "a part of a level is drawn plainly"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_that_ends_is_cut_at_its_end(models, temperature):
    whole = decoded(models, "compact", MORE["specbranch"], temperature).tokens
    for eos in dict.fromkeys(whole[5:]):
        text = decoded(models, "recorded", MORE["specbranch"], temperature, [eos]).tokens
        assert eos not in text[:-1] and (text[-1] == eos or len(text) == 40)
        if temperature == 0:
            assert text == whole[: whole.index(eos) + 1]


def test_the_draft_reads_a_rounds_branches_at_once(models):
    """The law at the branch point for its count, twice for the most likely tokens there, then all branches' tokens; accepted ones
    after a rollback; the target its verdict."""
    decoder = build_decoder(pair(models, "recorded", Marked), MORE["specbranch"] | {"gamma": 6, "overlap": "none"})
    reads = []
    for _ in decoder.stream(PROMPT, max_new_tokens=40, temperature=0.0, randomness=Randomness(7), eos_token_id=[]):
        reads.append(OnDevice.reads)
        OnDevice.reads = 0
    assert max(reads[1:]) == 1 + 2 + 1 + 1 + 1


@pytest.mark.parametrize("retention", ["posterior", "prior"])
@pytest.mark.parametrize("temperatures", [(0.0, 1.0), (1.0, 0.0)])
def test_laws_hold_until_their_tokens_are_drawn(models, tmp_path, temperatures, retention, monkeypatch):
    """A head that is asked between a law and its token runs a program that may have been recorded before theirs."""
    folder = random_bundle(tmp_path / "b", pair(models, "compact"), "extended", gamma=3)
    config = {"method": "branch_parallel", "gamma": 3, "k_max": 2, "overlap": "none", "retention": retention}
    decoder = build_decoder(pair(models, "recorded"), config | {"controller": {"kind": "hrad", "bundle": str(folder)}})
    spoilt = []
    token = sampler.SamplingProgram.token

    def noted(program, chance):
        spoilt.append(bool(program._probs.isnan().any()))
        return token(program, chance)

    monkeypatch.setattr(sampler.SamplingProgram, "token", noted)
    for temperature in temperatures:
        decoder.generate(PROMPT, max_new_tokens=24, temperature=temperature, randomness=Randomness(7), eos_token_id=[])
    assert spoilt and not any(spoilt)
