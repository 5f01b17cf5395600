"""Round traces of branch-parallel decoding: rows are true, a policy is probed between its own rounds, sets join to labels."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from predictors.controllers import Controller, Session, build_controller
from predictors.features import state_vector
from predictors.training.label_table import read_labels
from predictors.training.labels import LabelConfig, write_labels
from predictors.training.trace_table import TraceTable
from runtime import ModelPair
from runtime.branching.config import BranchConfig
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.verification import VERIFIERS
from tests.branches import shaken_llama, sharp_llama
from tests.greedy import greedy_text
from tests.toys import tiny_llama
from tests.trace_collection.collecting import contents, quiet, random_prompts, read
from trace_collection.collect import TraceConfig, collect
from trace_collection.probe import Probe
from trace_collection.rows import one_in

GAMMA = 3
CONFIG = TraceConfig(
    drafting="branches", k_max=2, gamma_max=GAMMA, max_new_tokens=24, num_layers=2, prompts_per_shard=4, threads=1
)
CHAIN = dataclasses.replace(CONFIG, drafting="chain")
HALVES = {"kind": "confidence", "epsilon": 0.5}


@pytest.fixture(scope="module")
def pair():
    return ModelPair(sharp_llama(2, sharpness=6), shaken_llama(2, sharpness=6))


@pytest.fixture(scope="module")
def prompts():
    return random_prompts(range(3, 15), itertools.cycle(["train", "train", "validation", "test"]))


@pytest.fixture(scope="module")
def collected(pair, prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("branches")
    collect(pair, prompts, CONFIG, folder, quiet)
    return folder


@pytest.fixture(scope="module")
def probed(pair, prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("probed")
    collect(pair, prompts, CONFIG, folder, quiet, policy=build_controller(HALVES))
    return folder


def require_truth(rows, pair, prompts):
    """Tokens, outcomes, confidences and states of greedy rows, recomputed without any cache."""
    target, draft = pair.target.model, pair.draft.model
    texts = {prompt.id: [*prompt.tokens, *greedy_text(target, prompt.tokens, 24)] for prompt in prompts}
    for row in rows:
        text, position, drafted = texts[row["prompt_id"]], row["position"], row["drafted"]
        root = text[:position]
        assert root[-1] == row["newest_token"]
        assert row["tokens"][:drafted] == greedy_text(draft, root, drafted)
        agreed = [a == b for a, b in zip(row["tokens"], [*text[position:], *[-2] * GAMMA], strict=False)][:drafted]
        assert row["accepted"] == (agreed.index(False) if False in agreed else drafted)
        assert row["censored"] == (drafted < GAMMA)
        with torch.no_grad():
            laws = draft(torch.tensor([[*root, *row["tokens"][:drafted]]])).logits[0].softmax(-1)
            hidden = target(torch.tensor([root]), output_hidden_states=True).hidden_states
        confidences = laws[position - 1 : position - 1 + drafted].amax(-1)
        np.testing.assert_allclose(row["confidence"][:drafted], confidences.numpy(), atol=1e-4)
        embedding = target.get_input_embeddings().weight[root[-1]].detach()
        state = torch.cat([hidden[1][0, -2], hidden[2][0, -2], embedding])
        np.testing.assert_allclose(np.asarray(row["state"], np.float32), state.numpy(), atol=2e-3, rtol=2e-3)


def test_rows_tell_the_truth(collected, pair, prompts):
    rows = read(collected)
    require_truth(rows, pair, prompts)
    assert {row["accepted"] for row in rows} == {0, 1, 2, 3}
    wrong = dict(rows[0], accepted=(rows[0]["accepted"] + 1) % 4)
    with pytest.raises(AssertionError):
        require_truth([wrong], pair, prompts)


def test_every_round_is_a_row_and_knows_the_one_before(collected):
    rows = read(collected)
    for before, row in zip([None, *rows], rows, strict=False):
        if row["round"] == 1:
            assert row["newest_token_source"] == "prefill" and row["previous_drafted"] == -1
            continue
        assert row["round"] == before["round"] + 1 and row["prompt_id"] == before["prompt_id"]
        assert (row["previous_drafted"], row["previous_accepted"]) == (before["drafted"], before["accepted"])
        assert row["position"] == before["position"] + before["accepted"] + 1
        if row["newest_token_source"] == "branch":
            assert before["accepted"] == before["drafted"]
        else:
            whole = before["accepted"] == before["drafted"]
            assert row["newest_token_source"] == ("bonus" if whole else "correction")
    assert {row["newest_token_source"] for row in rows} == {"prefill", "branch", "bonus", "correction"}


def test_only_the_budget_cuts_a_draft(collected, prompts):
    length = {prompt.id: len(prompt.tokens) for prompt in prompts}
    for row in read(collected):
        remaining = 24 - (row["position"] - length[row["prompt_id"]])
        most = min(GAMMA, remaining - 1)
        cut_as_a_branch = row["newest_token_source"] == "branch" and remaining <= GAMMA
        assert row["drafted"] == most or cut_as_a_branch


# ---- a policy


def rounds_of(pair, prompts, controller):
    """The rounds of a probed policy over all prompts, straight from the decoder."""
    config = BranchConfig(gamma=GAMMA, k_max=2, overlap="none")
    decoder = BranchParallelDecoder(pair, config, VERIFIERS["tokenwise"], controller)
    for prompt in prompts:
        steps = decoder.stream(prompt.tokens, max_new_tokens=24, observe=True, layers=(1, 2))
        before = None
        for index, step in enumerate(steps):
            if index:
                yield prompt, index, before, step
            before = step


def test_rows_are_the_probed_rounds_and_their_past_is_the_policys(probed, pair, prompts):
    rows = {(row["prompt_id"], row["round"]): row for row in read(probed)}
    require_truth(rows.values(), pair, prompts)
    shorter = 0
    for prompt, index, before, step in rounds_of(pair, prompts, Probe(build_controller(HALVES))):
        row = rows.pop((prompt.id, index), None)
        assert (row is None) == (index % 2 == 1), "every other round is probed, from the second on"
        if row is None:
            shorter += step.record.submitted < GAMMA
            continue
        past = before.record
        assert (row["previous_drafted"], row["previous_accepted"]) == (past.submitted, past.accepted_in_sequence)
        assert (row["drafted"], row["accepted"]) == (step.record.submitted, step.record.accepted_in_sequence)
        root = step.evidence.root
        assert np.array_equal(
            np.asarray(row["state"], np.float16), state_vector(root.hidden_KD, root.embedding_E).numpy()
        )
    assert not rows and shorter > 5


def test_probed_rounds_draft_everything(probed, prompts):
    length = {prompt.id: len(prompt.tokens) for prompt in prompts}
    uncut = [row for row in read(probed) if 24 - (row["position"] - length[row["prompt_id"]]) > 2 * GAMMA + 2]
    assert uncut and {row["drafted"] for row in uncut} == {GAMMA}
    assert {row["newest_token_source"] for row in uncut} >= {"branch", "correction"}
    assert {row["previous_drafted"] for row in uncut} >= {1, 2, GAMMA}


class Counting(Controller):
    """A policy that drafts one token and writes down what it learns."""

    kind = "counting"

    def __init__(self):
        self.sessions = []

    def start(self, settings):
        self.sessions.append(CountingSession())
        return self.sessions[-1]


class CountingSession(Session):
    def __init__(self):
        self.plans, self.outcomes = [], []

    def plan(self, root):
        self.plans.append(root.position)
        return 1

    def end_round(self, outcome):
        self.outcomes.append(outcome.submitted)


def test_the_policy_learns_from_every_round_and_decides_its_own(pair, prompts):
    policy = Counting()
    steps = [step for *_, step in rounds_of(pair, prompts[:1], Probe(policy))]
    (session,) = policy.sessions
    assert session.outcomes == [step.record.submitted for step in steps[:-1]]
    assert session.plans == [step.evidence.root.position for step in steps[::2]]
    assert [step.record.submitted for step in steps[:-2:2]] == [1] * len(steps[:-2:2])


def test_a_policy_of_chains_is_refused(pair, prompts, tmp_path):
    with pytest.raises(ValueError, match="set traces' drafting to branches"):
        collect(pair, prompts, CHAIN, tmp_path / "out", quiet, policy=build_controller(HALVES))
    with pytest.raises(ValueError, match="unknown drafting 'trees'. Known: chain, branches"):
        TraceConfig(drafting="trees")
    assert not (tmp_path / "out").exists()


# ---- collections


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stop_after", [0, 5, 11])
def test_an_interrupted_collection_ends_in_the_same_bytes(pair, prompts, tmp_path, stop_after, temperature):
    config = dataclasses.replace(CONFIG, temperatures=(temperature,), max_new_tokens=12)
    policy = build_controller(HALVES)

    def interrupted(work, total):
        for index, item in enumerate(work):
            if index == stop_after:
                raise KeyboardInterrupt
            yield item

    collect(pair, prompts, config, tmp_path / "whole", quiet, policy=policy)
    with pytest.raises(KeyboardInterrupt):
        collect(pair, prompts, config, tmp_path / "cut", interrupted, policy=policy)
    assert collect(pair, prompts, config, tmp_path / "cut", quiet, policy=policy)["kept"] == stop_after // 4
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_one_in_n_prompts_of_every_split_is_decoded(pair, prompts, tmp_path):
    collect(pair, prompts, dataclasses.replace(CONFIG, every=5), tmp_path, quiet)
    by_split = itertools.groupby(sorted(prompts, key=lambda one: one.split), key=lambda one: one.split)
    splits = [list(some) for _, some in by_split]
    wanted = {one.id for some in splits for one in some[: math.ceil(len(some) / 5)]}
    assert {row["prompt_id"] for row in read(tmp_path)} == wanted and len(wanted) < len(prompts) / 2


@pytest.mark.parametrize("every", [1, 2, 3, 6])
def test_a_share_of_the_prompts_has_all_slices_and_most_documents(every):
    """As the prompts stage orders them. A stride, the wrong twin, meets one slice only where it is a multiple of their number."""
    slices = {"code": 9, "prose": 6, "tables": 3}
    prompts = [
        SimpleNamespace(id=f"{split}-{n}", split=split, slice=name, document=f"{split}/{name}/{n % documents}")
        for split in ("train", "test")
        for n in range(18)
        for name, documents in slices.items()
    ]
    chosen = one_in(every, prompts)
    assert len(chosen) == len(prompts) / every
    for split in ("train", "test"):
        for name, documents in slices.items():
            mine = [one for one in chosen if (one.split, one.slice) == (split, name)]
            assert len(mine) == 18 / every and len({one.document for one in mine}) == min(documents, 18 // every)
    strided = {one.slice for one in prompts[::every]}
    assert (len(strided) == 1) == (every % 3 == 0)


# ---- labels of two sets


def test_two_sets_are_labelled_as_one(collected, pair, prompts, tmp_path):
    chains = tmp_path / "chains"
    collect(pair, prompts[:8], dataclasses.replace(CHAIN, max_new_tokens=16), chains, quiet)
    sets = [TraceTable(folder) for folder in (chains, collected)]
    tables = []
    for index, some in enumerate(([sets[0]], [sets[1]], sets)):
        write_labels(some, LabelConfig(2), tmp_path / f"{index}.parquet")
        tables.append(read_labels(tmp_path / f"{index}.parquet"))
    assert len(tables[2]) == len(tables[0]) + len(tables[1]) and len(tables[0]) and len(tables[1])
    assert np.array_equal(tables[2].label, np.concatenate([tables[0].label, tables[1].label]))
    ranges = [table.metadata.capture_contract("labels").serving_range for table in tables]
    assert [(item.min_context, item.max_context) for item in ranges] == [(4, 26), (4, 38), (4, 38)]
    assert len({table.metadata.traces_sha256 for table in tables}) == 3


def test_sets_of_other_lengths_or_pairs_are_refused(collected, pair, prompts, tmp_path):
    collect(pair, prompts, dataclasses.replace(CONFIG, gamma_max=2), tmp_path / "shorter", quiet)
    collect(ModelPair(tiny_llama(seed=5), pair.draft.model), prompts, CONFIG, tmp_path / "another", quiet)
    for name, message in (
        ("shorter", "shorter has gamma_max 2 and .* 3"),
        ("another", "another does not belong.*target"),
    ):
        with pytest.raises(ValueError, match=message):
            write_labels([TraceTable(collected), TraceTable(tmp_path / name)], LabelConfig(2), tmp_path / "out.parquet")
