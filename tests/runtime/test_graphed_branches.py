"""Branch-parallel decoding over graphed passes: the text of plain calls, where branches are hit, stop and end."""

import pytest
import torch

from runtime import Randomness, build_decoder
from runtime.branching.draft import BranchDraft
from runtime.decoding.branch_parallel import BranchRun
from runtime.drafting import sampler
from tests.bundles import random_bundle
from tests.runtime.graphing import HiddenReads, Marked, OnDevice
from tests.runtime.test_graphed_decoding import BRANCH_PARALLEL, BRANCHES, PROMPT, pair
from tests.toys import tiny_llama

STOPS = {"kind": "confidence", "epsilon": 0.1, "min_tokens": 0}
MORE = BRANCHES | {
    "match": {**BRANCH_PARALLEL, "branch_verifier": "match", "verifier": "tokenwise"},
    "some_stop": {**BRANCH_PARALLEL, "k_max": 3, "k_rule": "const", "retention": "prior", "controller": STOPS},
}


@pytest.fixture(scope="module")
def models():
    """A target, and a draft that is nearly the same: branches are hit."""
    return target_and_draft(noise=0.003)


def target_and_draft(noise):
    target, draft = (tiny_llama(seed=0).double() for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return [target, draft]


@pytest.fixture(autouse=True)
def as_many_numbers(monkeypatch):
    """Plain verdicts draw as many numbers as graphed ones, which draw a token behind the last pending one, too."""
    verify = BranchRun._verify

    def burning(run, tree, logits):
        accepted, token, law_V = verify(run, tree, logits)
        if not run.request.settings.greedy and run.graphed is None:
            for _ in range(2 * (not tree.num_nodes) or accepted == tree.num_nodes):
                run.chance.categorical(law_V)
        return accepted, token, law_V

    monkeypatch.setattr(BranchRun, "_verify", burning)


def decoded(models, path, config, temperature):
    return generated(build_decoder(pair(models, path), config | {"overlap": "none"}), temperature)


def generated(decoder, temperature, eos=()):
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
    graphed = decoded(models, "graphed", MORE[name], temperature)
    assert (graphed.tokens, counts(graphed)) == (plain.tokens, counts(plain))
    assert bool(fell_back) == (name == "some_stop"), "a part of a level is drawn plainly"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("k_rule", "reads"), [("const", 1), ("ceil", 2)])
@pytest.mark.parametrize("branch_verifier", ["rrs", "match", "hybrid"])
def test_the_draft_reads_a_rounds_branches_at_once(branch_verifier, k_rule, reads, temperature, monkeypatch):
    """All its tokens, candidates among them, and before them the law at the branch point if their number depends on it."""
    config = MORE["specbranch"] | {"k_rule": k_rule, "branch_verifier": branch_verifier, "overlap": "none"}
    counts = {"advance": [], "branch": []}
    for name, seen in counts.items():
        monkeypatch.setattr(BranchDraft, name, counted(getattr(BranchDraft, name), seen))
    missed = set()
    for noise in (0.003, 0.1):
        decoder = build_decoder(pair(target_and_draft(noise), "graphed", Marked), config)
        options = {"max_new_tokens": 24, "temperature": temperature, "randomness": Randomness(7), "eos_token_id": []}
        with HiddenReads():
            missed |= {record.ends_segment for record in decoder.generate(PROMPT, **options).rounds[1:-1]}
    assert missed == {False, True}
    assert (max(counts["advance"]), max(counts["branch"])) == (0, reads)


def counted(method, reads):
    def call(*given):
        before = OnDevice.reads
        said = method(*given)
        reads.append(OnDevice.reads - before)
        return said

    return call


@pytest.mark.parametrize("retention", ["posterior", "prior"])
@pytest.mark.parametrize("temperatures", [(0.0, 1.0), (1.0, 0.0)])
def test_laws_hold_until_their_tokens_are_drawn(models, tmp_path, temperatures, retention, monkeypatch):
    """A head that is asked between a law and its token runs a program that may have been graphed before theirs."""
    folder = random_bundle(tmp_path / "b", pair(models, "compact"), "extended", gamma=3)
    config = {"method": "branch_parallel", "gamma": 3, "k_max": 2, "overlap": "none", "retention": retention}
    decoder = build_decoder(pair(models, "graphed"), config | {"controller": {"kind": "hrad", "bundle": str(folder)}})
    spoilt = []
    token = sampler.SamplingProgram.token

    def noted(program, chance):
        spoilt.append(bool(program._probs.isnan().any()))
        return token(program, chance)

    monkeypatch.setattr(sampler.SamplingProgram, "token", noted)
    for temperature in temperatures:
        decoder.generate(PROMPT, max_new_tokens=24, temperature=temperature, randomness=Randomness(7), eos_token_id=[])
    assert spoilt and not any(spoilt)
