"""Pairs, requests and configurations: what is served, and what is refused by name."""

import subprocess
import sys

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast

from runtime import ModelPair, build_decoder
from runtime.audit.tables import TableModel
from runtime.drafting import DRAFTERS
from runtime.self_drafting import GUESSERS
from runtime.verification import VERIFIERS
from tests.runtime.test_drafting import DELAYED, FORK, PAIRS, speculative, toys
from tests.toys import tiny_llama


def tokenizer(words):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    )


WORDS = [f"w{index}" for index in range(30)]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1, layers=1))


def test_different_vocabularies_are_refused():
    with pytest.raises(ValueError, match="40"):
        ModelPair(tiny_llama(32), tiny_llama(40))
    with pytest.raises(ValueError, match="vocabular"):
        ModelPair(tiny_llama(32), tiny_llama(32), tokenizer=tokenizer(WORDS), draft_tokenizer=tokenizer(WORDS[::-1]))


@pytest.mark.parametrize("draft_size", [30, 40])
def test_vocabularies_that_differ_by_padding_decode(draft_size):
    words = tokenizer(WORDS)
    target = tiny_llama(32)
    pair = ModelPair(target, tiny_llama(draft_size, layers=1), tokenizer=words, draft_tokenizer=words)
    out = build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}}).generate(
        [1, 2], max_new_tokens=20
    )
    assert out.tokens == build_decoder(pair, {"method": "autoregressive"}).generate([1, 2], max_new_tokens=20).tokens


def test_load_from_folders(tmp_path, monkeypatch):
    for name, layers in (("target", 2), ("draft", 1)):
        tiny_llama(32, layers=layers).save_pretrained(tmp_path / name)
        tokenizer(WORDS).save_pretrained(tmp_path / name)
    pair = ModelPair.load(tmp_path / "target", tmp_path / "draft", device="cpu", dtype="float32")
    assert pair.target.dtype == torch.float32 and pair.target.context_limit == 256 and len(pair.tokenizer) == 30
    asked = ModelPair.load(tmp_path / "target", device="cpu", dtype="float32", forward="compact").target
    assert (pair.target.forward, asked.forward, asked.whole) == ("packed", "compact", True)
    monkeypatch.setattr("runtime.pair.native_dtype", lambda device: torch.bfloat16)
    pair = ModelPair.load(tmp_path / "target", tmp_path / "draft", device="cpu")
    assert pair.target.dtype == pair.draft.dtype == torch.bfloat16
    mixed = ModelPair(tiny_llama(32).bfloat16(), tiny_llama(32, layers=1), forward="hugging_face")
    mixed = build_decoder(mixed, {"method": "speculative"}).generate([1, 2], max_new_tokens=12, temperature=1.0)
    assert len(mixed.tokens) == 12
    tokenizer(WORDS[::-1]).save_pretrained(tmp_path / "draft")
    with pytest.raises(ValueError, match="vocabular"):
        ModelPair.load(tmp_path / "target", tmp_path / "draft", device="cpu", tokenizer=tmp_path / "target")
    with pytest.raises(ValueError, match="cannot load a model from .*nowhere"):
        ModelPair.load(tmp_path / "nowhere")
    for device in ("cuda:99", "abacus", "hpu"):
        with pytest.raises(ValueError, match=f"device '{device}' cannot be used here"):
            ModelPair.load(tmp_path / "target", device=device)
    for dtype in ("int8", "float8_e4m3fn"):
        with pytest.raises(ValueError, match=f"dtype '{dtype}' is not a floating-point"):
            ModelPair.load(tmp_path / "target", dtype=dtype)


def test_models_that_cannot_decode_are_refused_by_name(tmp_path):
    MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="MambaForCausalLM has linear_attention layers"):
        ModelPair.load(tmp_path, device="cpu")


REQUESTS = [
    ([], {}, "the prompt is empty"),
    ([1, 99], {}, "token 99 .* vocabulary of 32"),
    ([1] * 250, {"max_new_tokens": 7}, "250 tokens and max_new_tokens=7 .* 256.*<= 6"),
    ([1] * 300, {}, r"shorter than \d+ tokens"),
    ([[1, 2]], {}, "one request at a time"),
    *((prompt, {}, "one sequence of token ids") for prompt in ("text", None, ["text"], [[1], [2, 3]])),
    ([1.7, 2.2], {}, "must be token ids"),
    ([1], {"max_new_tokens": 0}, "max_new_tokens must be"),
    ([1], {"randomness": 5}, "got 5: pass Randomness"),
    ([1], {"temperature": 1e-320}, "temperature 1e-320"),
    ([1], {"temperature": -1.0}, "temperature must be"),
    ([1], {"top_k": 2.5}, "top_k must be a whole number"),
    ([1], {"eos_token_id": [None]}, "eos_token_id must be a token id"),
]


@pytest.mark.parametrize(("prompt", "options", "message"), REQUESTS)
def test_bad_requests_are_refused_before_any_work(pair, prompt, options, message):
    with pytest.raises(ValueError, match=message):
        build_decoder(pair, {"method": "speculative"}).stream(prompt, **options)


@pytest.mark.parametrize("forward", ["auto", "compact", "packed", "graphed", "hugging_face"])
def test_pairs_may_be_made_in_inference_mode(forward):
    config = {"method": "speculative"}
    with torch.inference_mode():
        models = tiny_llama(seed=0), tiny_llama(seed=1, layers=1)
        made = build_decoder(ModelPair(*models, forward=forward), config)
        text = made.generate([1, 2], max_new_tokens=9).tokens
    right = build_decoder(ModelPair(tiny_llama(seed=0)), {"method": "autoregressive"})
    assert right.generate([1, 2], max_new_tokens=9).tokens == text


def test_decoding_without_the_draft_is_not_bound_by_its_context():
    pair = ModelPair(tiny_llama(seed=0), tiny_llama(seed=1, layers=1, max_position_embeddings=32))
    for config in ({"method": "autoregressive"}, speculative({"kind": "lookup"}, "block")):
        assert len(build_decoder(pair, config).generate([1] * 30, max_new_tokens=20).tokens) == 20
    with pytest.raises(ValueError, match="the pair's context of 32"):
        build_decoder(pair, {"method": "speculative"}).generate([1] * 30, max_new_tokens=20)


def test_end_of_sequence_may_be_a_tensor_or_set_later(pair):
    decoder = build_decoder(pair, {"method": "speculative"})
    text = decoder.generate([1, 2], max_new_tokens=20).tokens
    stop = text[7]
    expected = text[: text.index(stop) + 1]
    for value in (stop, [stop], {stop}, frozenset([stop]), torch.tensor([stop]), torch.tensor(stop)):
        assert decoder.generate([1, 2], max_new_tokens=20, eos_token_id=value).tokens == expected
    pair.target.model.generation_config.eos_token_id = stop
    assert decoder.generate([1, 2], max_new_tokens=20).tokens == expected
    pair.target.model.generation_config.eos_token_id = None


def test_runtime_imports_nothing_of_the_training_side():
    """Nor transformers, whose import takes longer than all else: a process that drafts does without."""
    code = (
        "import sys, runtime, predictors.controllers, predictors.bundle\n"
        "banned = {'lightning', 'datasets', 'imblearn', 'mlflow', 'dvc', 'pyarrow', 'matplotlib',"
        " 'pipelines', 'trace_collection', 'predictors.training', 'transformers'}\n"
        "assert not banned & set(sys.modules), banned & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- configurations of decoders: which drafters go with which verifiers, and what is refused with its key or value

BRANCHES = {"method": "branch_parallel"}
BAD = [
    ({}, "key 'method' is missing"),
    ({"method": "magic"}, "unknown method 'magic'"),
    ({"method": "autoregressive", "drafter": {"kind": "chain"}}, "neither drafter nor controller"),
    ({"method": "lookahead", "widnow": 3}, "'widnow'. Did you mean 'window'"),
    ({"preset": "medusa"}, "unknown preset 'medusa'"),
    ({"preset": "specbranch", "controller": {"kind": "hrad"}}, "no bundle is named"),
    (BRANCHES | {"gama": 3}, "'gama'. Did you mean 'gamma'"),
    (BRANCHES | {"gamma": 0}, "gamma must be >= 1, got 0"),
    (BRANCHES | {"draft_stage": "preverify", "draft_stage_gamma": 4}, "draft_stage 'preverify'"),
    (BRANCHES | {"gamma": 3, "draft_stage_gamma": 4}, "draft_stage_gamma=4 exceeds gamma=3"),
    (BRANCHES | {"k_rule": "round"}, "k_rule .* 'round'"),
    (BRANCHES | {"verifier": "spectr"}, "chain.* 'spectr'"),
    (BRANCHES | {"epsilon": 0.3, "controller": {"kind": "fixed"}}, "epsilon=0.3"),
    (speculative(DELAYED, "block"), "'block' takes chains only, and DelayedTreeConfig"),
    (speculative(FORK, "block"), "Verifiers for this drafter: traversal, nss"),
    (speculative(PAIRS, "specinfer"), "'specinfer' is not lossless for WITHOUT_REPLACEMENT"),
    (speculative({"kind": "chain"}, "hsd_as_published"), "unknown verifier 'hsd_as_published'"),
    (speculative({"kind": "bush"}, "block"), "unknown kind 'bush'"),
    (speculative({"kind": "chain", "gama": 0}, "block"), "'gama'. Did you mean 'gamma'"),
    (speculative({"kind": "delayed_tree", "k": 0}, "traversal"), "got k=0"),
    (speculative({"kind": "delayed_tree", "choices": [{"k": 2}]}, "traversal"), "choices are the controller's"),
    (speculative({"kind": "multi_candidate", "config": []}, "traversal"), "config needs a number per level"),
    (speculative({"kind": "multi_candidate", "candidates": "best"}, "traversal"), "candidates must be one of"),
    (speculative({"kind": "fork", "width": 0}, "traversal"), "width must be >= 1, got 0"),
    (speculative({"kind": "chain", "draft_temperature": -1.0}, "block"), "draft_temperature .* got -1"),
    (speculative({"kind": "lookup", "length": 0}, "block"), "length must be >= 1, got 0"),
    (speculative({"kind": "lookup", "least": 17}, "block"), "least=17 is more than longest=16"),
    (speculative({"kind": "chain", "gamma": 5, "lookup": {"length": 6}}, "block"), "lookup.length=6"),
    (speculative({"kind": "chain", "lookup": {"most": 6}}, "block"), "unknown key 'most'"),
]
OF_A_PAIR = {"drafter": {"kind": "chain"}, "controller": {"kind": "fixed"}, "verifier": "block", "gamma": 4}
BAD += [
    ({"method": method, key: value}, f"'{method}'.*{key}") for method in GUESSERS for key, value in OF_A_PAIR.items()
]


@pytest.mark.parametrize(("config", "message"), BAD, ids=str)
def test_bad_configurations_are_refused_by_name(config, message):
    with pytest.raises(ValueError, match=message):
        build_decoder(toys(), config)


@pytest.mark.parametrize("config", [speculative({"kind": "chain"}, "block"), BRANCHES], ids=str)
def test_methods_with_a_draft_need_one(config):
    with pytest.raises(ValueError, match="needs a draft model"):
        build_decoder(ModelPair(TableModel(3, 0)), config)


def test_every_pair_of_drafter_and_verifier_is_lossless_or_refused():
    for kind, config in DRAFTERS.items():
        for verifier in VERIFIERS.values():
            drafter = config()
            fits = drafter.laws <= verifier.lossless_for and not (verifier.chains_only and drafter.branches)
            try:
                build_decoder(toys(), speculative({"kind": kind}, verifier.name))
                assert fits
            except ValueError:
                assert not fits
