"""Pairs, configurations and requests: what is refused, and with which words."""

import subprocess
import sys

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast

from runtime import ModelPair, build_decoder
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


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([1, 99], {}, "prompt token 99 is outside the target's vocabulary of 32"),
        (
            [1] * 250,
            {"max_new_tokens": 7},
            "250 tokens and max_new_tokens=7 do not fit the pair's context of 256.*<= 6",
        ),
        ([[1, 2]], {}, "one request at a time"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens must be a whole number >= 1"),
        *(
            (prompt, {}, "prompt_ids must be one sequence of token ids")
            for prompt in ("text", None, ["text"], [[1], [2, 3]])
        ),
        ([1], {"randomness": 5}, "got 5: pass Randomness"),
        ([1], {"temperature": 1e-320}, "temperature 1e-320 takes logits out of float32's range"),
        ([1] * 300, {}, r"Shorten the prompt: it must be shorter than \d+ tokens"),
        ([1], {"temperature": -1.0}, "temperature must be"),
        ([1], {"top_k": 2.5}, "top_k must be a whole number"),
        ([1], {"eos_token_id": [None]}, "eos_token_id must be a token id"),
        ([1.7, 2.2], {}, "must be token ids"),
    ],
)
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


def test_plain_decoding_is_not_bound_by_the_drafts_context():
    pair = ModelPair(tiny_llama(seed=0), tiny_llama(seed=1, layers=1, max_position_embeddings=32))
    assert len(build_decoder(pair, {"method": "autoregressive"}).generate([1] * 30, max_new_tokens=20).tokens) == 20
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


def test_weights_that_are_not_numbers_are_noticed():
    model = tiny_llama(seed=0)
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(ValueError, match="not finite after the prompt"):
        build_decoder(ModelPair(model, tiny_llama(seed=1, layers=1)), {"method": "speculative"}).generate(
            [1, 2], temperature=1.0
        )


def test_runtime_imports_nothing_of_the_training_side():
    """Nor transformers, whose import takes longer than all else: a process that drafts does without."""
    code = (
        "import sys, runtime, predictors.controllers, predictors.bundle\n"
        "banned = {'lightning', 'datasets', 'imblearn', 'mlflow', 'dvc', 'pyarrow', 'matplotlib',"
        " 'pipelines', 'trace_collection', 'predictors.training', 'transformers'}\n"
        "assert not banned & set(sys.modules), banned & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
