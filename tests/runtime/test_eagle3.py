"""EAGLE-3 drafters: what the layer computes, both forms of a folder, and exact decoding with them in every way of drafting."""

import json

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.audit.enumeration import total_variation
from runtime.audit.rounds import decoded_law
from runtime.audit.tables import target_law
from runtime.drafting.chain import ChainDraft
from runtime.drafting.sampler import PlainSampler
from runtime.eagle3 import drafter as drafter_module
from runtime.eagle3.checkpoint import eagle3_folder, read_checkpoint
from runtime.identity import pair_identity
from tests.ancestral import LlamaLogits
from tests.eagle3 import VARIANTS, Reference, random_drafter, save_drafter
from tests.greedy import greedy_text
from tests.toys import tiny_llama

PROMPT = [0, 1, 2]
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]


def opened(model, drafter):
    """A target's states along a text and a state of its drafter that has read it."""
    pair = ModelPair(model, drafter)
    state = pair.draft.open(64)
    hidden = pair.target.open(64, pair.draft.features).forward(TEXT).hidden_NKD
    state.offer(hidden[:-1])
    return state


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_text_and_a_tree_behind_it_are_what_the_layer_says(options):
    model = tiny_llama(seed=3)
    reference = Reference(random_drafter(model, **options), model)
    state = opened(model, reference.drafter)
    out = state.forward(TEXT[1:], last=1)
    state.keep(range(len(TEXT) - 1))
    torch.testing.assert_close(out.logits, reference.laws(TEXT), atol=2e-5, rtol=1e-4)
    first = state.forward([7, 8], [-1, -1])  # a tree, then a level and a half at once
    rest = state.forward([9, 10, 11, 12], [0, 1, 2, 0])
    paths = {0: [7], 1: [8], 2: [7, 9], 3: [8, 10], 4: [7, 9, 11], 5: [7, 12]}
    for node, path in paths.items():
        made = (first.logits if node < 2 else rest.logits)[node if node < 2 else node - 2]
        torch.testing.assert_close(made, reference.laws(TEXT, path)[-1], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("pending", [0, 1])
def test_drafted_tokens_that_stay_take_the_targets_states(pending):
    """Rows of a chain that is committed are as if its tokens had been fed from the target's states."""
    model = tiny_llama(seed=3)
    reference = Reference(random_drafter(model), model)
    state = opened(model, reference.drafter)
    state.forward(TEXT[1:], last=1)
    state.keep(range(len(TEXT) - 1))
    longer, chain = [*TEXT, 7, 9], [7, 9, 11]
    state.forward(chain)
    hidden = ModelPair(model, reference.drafter).target.open(64, reference.drafter.layers).forward(longer).hidden_NKD
    state.offer(hidden[len(TEXT) - 1 : len(TEXT) + 1])
    state.keep(range(2 + pending), pending=pending)
    if not pending:
        state.offer(hidden[len(TEXT) + 1 :])
        out = state.forward([12])
        torch.testing.assert_close(out.logits, reference.laws([*longer, 12]), atol=2e-5, rtol=1e-4)
    else:  # goes on from its own states, over a context that is known now
        assert not len(state._offered_NC)
        state.forward([12], [0])


# ---- exact


def eagle_pair(size=4, ids=(0, 2, 3), seed=0, **options):
    model = tiny_llama(size, seed=seed)
    return ModelPair(model, random_drafter(model, list(ids), seed=seed + 1, **options))


def error(pair, config, length=4, temperature=1.0):
    settings = SamplingSettings(temperature)
    made = decoded_law(build_decoder(pair, config), PROMPT, length, settings)
    return total_variation(made, target_law(LlamaLogits(pair.target.model), PROMPT, length, settings))


CHAIN = {"kind": "chain", "gamma": 2}
SEQUENTIAL = [
    {"drafter": CHAIN, "verifier": "block"},
    {"drafter": CHAIN, "verifier": "tokenwise", "controller": {"kind": "confidence", "epsilon": 0.6}},
    {"drafter": CHAIN | {"draft_temperature": 2.0}, "verifier": "hsd"},
    {"drafter": {"kind": "delayed_tree", "k": 2, "l1": 1, "l2": 1}, "verifier": "traversal"},
    {"drafter": {"kind": "multi_candidate", "config": [2, 1]}, "verifier": "rrs_without_replacement"},
    {"drafter": {"kind": "fork", "width": 2, "depth": 2, "candidates": "top_k"}, "verifier": "match"},
    {
        "drafter": {"kind": "chain", "gamma": 2, "lookup": {"length": 1}},
        "controller": {"kind": "takeover", "match": 1, "length": 1, "otherwise": {"kind": "fixed", "gamma": 1}},
    },
]


@pytest.mark.parametrize("config", SEQUENTIAL, ids=str)
def test_the_output_law_is_the_targets(config):
    pair = eagle_pair() if config["drafter"]["kind"] == "chain" else eagle_pair(3, (0, 2))
    assert error(pair, {"method": "speculative", **config}) < 1e-5


@pytest.mark.parametrize("options", VARIANTS[1:4], ids=str)
def test_the_output_law_of_variants(options):
    assert error(eagle_pair(**options), {"method": "speculative", "drafter": CHAIN}, temperature=0.7) < 1e-5


BRANCHES = {"method": "branch_parallel", "gamma": 1, "k_max": 2, "k_rule": "const", "overlap": "none"}


@pytest.mark.parametrize("stage", ["idle", "preverify"])
@pytest.mark.parametrize("kind", ["match", "rrs", "hybrid"])
def test_the_output_law_of_branches(kind, stage):
    config = {**BRANCHES, "branch_verifier": kind, "draft_stage": stage}
    pair = eagle_pair(3, (0, 2))
    assert error(pair, config, length=5) < 1e-5


def test_branches_run_on_in_a_thread_as_one_after_the_other():
    model = tiny_llama(8, seed=5)
    pair = ModelPair(model, random_drafter(model, seed=6))
    config = {"method": "branch_parallel", "gamma": 3, "k_max": 4, "k_rule": "const"}
    texts = []
    for overlap in ("none", "threads"):
        decoder = build_decoder(pair, config | {"overlap": overlap})
        out = decoder.generate(PROMPT, max_new_tokens=40, temperature=1.0, randomness=Randomness(3), eos_token_id=())
        texts.append(out.tokens)
        assert any(not one.ends_segment for one in out.rounds[1:]), "no branch was ever hit"
    assert texts[0] == texts[1]


GREEDY = [
    {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}},
    {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4, "leaves": [3, 1, 0, 2]}},
    {"method": "speculative", "drafter": {"kind": "fork", "width": 3, "depth": 3}, "verifier": "traversal"},
    {"method": "branch_parallel", "gamma": 3, "overlap": "none"},
    {"preset": "pearl", "gamma": 3, "overlap": "none"},
    {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4, "lookup": {"length": 2}},
     "controller": {"kind": "takeover", "match": 2, "length": 2, "otherwise": {"kind": "fixed", "gamma": 2}}},
]  # fmt: skip


@pytest.mark.parametrize("prompt", [[5], TEXT], ids=len)
@pytest.mark.parametrize("config", GREEDY, ids=str)
def test_greedy_text_is_the_targets(config, prompt):
    model = tiny_llama(seed=2)
    drafter = random_drafter(model, list(range(0, 32, 2)), seed=1)
    out = build_decoder(ModelPair(model, drafter), config).generate(prompt, max_new_tokens=40, eos_token_id=())
    assert out.tokens == greedy_text(model, prompt, 40)
    assert sum(one.drafted for one in out.rounds) > 0


def test_a_reduced_vocabulary_that_is_not_normalised_is_noticed(monkeypatch):
    """The wrong twin: probabilities of a draw over all of the target's ids, cut to those that the drafter has."""
    pair = eagle_pair()
    honest = ChainDraft._law

    def cut(self, root, depth, row):
        law = honest(self, root, depth, row)
        object.__setattr__(law, "probs_V", law.probs_V * 0.7)
        return law

    monkeypatch.setattr(ChainDraft, "_law", cut)
    assert error(pair, {"method": "speculative", "drafter": CHAIN, "verifier": "tokenwise"}, 3) > 1e-3


def test_another_q_than_the_one_that_was_drawn_from_is_noticed(monkeypatch):
    """The wrong twin: tokens are drawn from a law half of which is that of the id before."""
    honest = PlainSampler.token
    monkeypatch.setattr(PlainSampler, "token", lambda self, probs: honest(self, probs + probs.roll(1, dims=-1)))
    assert error(eagle_pair(), {"method": "speculative", "drafter": CHAIN, "verifier": "tokenwise"}, 3) > 1e-3


# ---- folders


@pytest.mark.parametrize("speculators", [False, True])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_both_forms_of_a_folder_are_read(tmp_path, options, speculators):
    model = tiny_llama(seed=3)
    drafter = random_drafter(model, **options)
    read = read_checkpoint(save_drafter(drafter, tmp_path / "d", speculators))
    assert (read.variant, read.layers, read.vocabulary_size) == (drafter.variant, drafter.layers, 32)
    assert read.tensors.keys() == drafter.tensors.keys()
    one, other = (pair_identity(ModelPair(model, made), ()) for made in (drafter, read))
    assert one == other
    torch.testing.assert_close(Reference(read, model).laws(TEXT, [7]), Reference(drafter, model).laws(TEXT, [7]))


def test_speculators_take_the_norm_before_the_residual_where_nothing_is_said(tmp_path):
    folder = save_drafter(random_drafter(tiny_llama(seed=3)), tmp_path / "d", speculators=True)
    config = json.loads((folder / "config.json").read_text())
    del config["norm_before_residual"]
    (folder / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(folder).variant.norm_before_residual


def test_a_pair_is_loaded_from_its_folders(tmp_path):
    model = tiny_llama(seed=3)
    model.save_pretrained(tmp_path / "target")
    folder = save_drafter(random_drafter(model), tmp_path / "drafter")
    assert eagle3_folder(folder) == folder and eagle3_folder(tmp_path / "target") is None
    pair = ModelPair.load(tmp_path / "target", folder, dtype="float32")
    out = build_decoder(pair, {"method": "speculative", "drafter": CHAIN}).generate(TEXT, max_new_tokens=20)
    assert out.tokens == greedy_text(model, TEXT, 20)


def changed(folder, **values):
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))
    return folder


NOT_SERVED = [
    ("num_hidden_layers", {"num_hidden_layers": 2}),
    ("peagle", {"speculators_model_type": "peagle"}),
    ("quantization_config", {"quantization_config": {"bits": 4}}),
    ("mlp_bias", {"mlp_bias": True}),
    ("model_type", {"model_type": "gemma3_text"}),
    ("pard_token", {"pard_token": 3}),
    ("tie_word_embeddings", {"tie_word_embeddings": True}),
    ("use_aux", {"eagle_config": {"use_aux_hidden_state": False}}),
    ("input_norm", {"norm_before_fc": True}),
    ("vocabulary", {"draft_vocab_size": 31, "vocab_size": 40}),
    ("bias", {"attention_bias": True}),
    ("dynamic", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
]


@pytest.mark.parametrize(("word", "values"), NOT_SERVED)
def test_what_is_not_served_is_refused_by_name(tmp_path, word, values):
    folder = save_drafter(random_drafter(tiny_llama(seed=3)), tmp_path / "d")
    with pytest.raises(ValueError, match=word):
        ModelPair(tiny_llama(seed=3), read_checkpoint(changed(folder, **values)))


@pytest.mark.parametrize("other", [{"hidden": 16}, {"vocabulary_size": 48}, {"layers": 1}], ids=str)
def test_a_drafter_of_another_target_is_refused(other):
    drafter = random_drafter(tiny_llama(seed=3))
    with pytest.raises(ValueError, match=r"another target|reads layers"):
        ModelPair(tiny_llama(seed=3, **other), drafter)


def test_the_targets_depth_says_which_layers_are_read():
    model = tiny_llama(seed=3, layers=8)
    drafter = random_drafter(model, layers=(2, 4, 5))
    object.__setattr__(drafter, "layers", None)
    assert drafter_module.Eagle3Drafter(drafter, ModelPair(model).target).features == (2, 4, 5)
