"""Use through ``model.generate(custom_generate=decoder)``."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    MaxTimeCriteria,
    MinLengthLogitsProcessor,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
    set_seed,
)

from runtime import ModelPair, build_decoder
from tests.toys import tiny_llama

PROMPT = torch.tensor([[3, 1, 4, 1, 5]])


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


@pytest.fixture(scope="module")
def decoder(pair):
    return build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}})


def test_greedy_equals_generate(pair, decoder):
    model = pair.target.model
    options = {"max_new_tokens": 30, "do_sample": False}
    assert torch.equal(model.generate(PROMPT, custom_generate=decoder, **options), model.generate(PROMPT, **options))


@pytest.mark.parametrize("place", range(1, 12, 2))
def test_end_of_sequence(pair, decoder, place):
    model = pair.target.model
    eos = int(model.generate(PROMPT, max_new_tokens=12, do_sample=False)[0, 4 + place])
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": eos, "pad_token_id": 0}
    assert torch.equal(model.generate(PROMPT, custom_generate=decoder, **options), model.generate(PROMPT, **options))


def test_sampling_follows_torchs_seed(pair, decoder):
    model = pair.target.model

    def sample(seed):
        set_seed(seed)
        return model.generate(
            PROMPT, custom_generate=decoder, do_sample=True, temperature=0.8, top_k=0, max_new_tokens=20
        ).tolist()

    assert sample(1) == sample(1) != sample(2)


def test_filters_arrive(pair, decoder):
    """top_k=1 is greedy whatever the temperature; Hugging Face's default top_k of 50 is honoured too."""
    model = pair.target.model
    greedy = model.generate(PROMPT, do_sample=False, max_new_tokens=20)
    sampled = model.generate(
        PROMPT, custom_generate=decoder, do_sample=True, temperature=2.0, top_k=1, max_new_tokens=20
    )
    assert torch.equal(greedy, sampled)
    narrow = model.generate(PROMPT, custom_generate=decoder, do_sample=True, top_p=1e-6, top_k=0, max_new_tokens=20)
    assert torch.equal(greedy, narrow)


def test_greedy_stays_greedy_whatever_the_warpers(pair, decoder):
    model = pair.target.model
    warped = model.generate(
        PROMPT,
        custom_generate=decoder,
        do_sample=False,
        logits_processor=[TemperatureLogitsWarper(5.0)],
        max_new_tokens=20,
    )
    assert torch.equal(warped, model.generate(PROMPT, do_sample=False, max_new_tokens=20))


def test_stopping_criteria_cut_inside_a_round(pair, decoder):
    class After(StoppingCriteria):
        def __init__(self, length):
            self.length = length

        def __call__(self, input_ids, scores, **kwargs):
            return torch.tensor([input_ids.shape[1] >= self.length])

    model = pair.target.model
    for length in range(6, 14):
        criteria = StoppingCriteriaList([After(length), MaxTimeCriteria(60.0)])
        out = model.generate(
            PROMPT, custom_generate=decoder, do_sample=False, max_new_tokens=20, stopping_criteria=criteria
        )
        assert torch.equal(out, model.generate(PROMPT, do_sample=False, max_new_tokens=length - 5))


def test_streamer_receives_every_token(pair, decoder):
    class Recorder:
        def __init__(self):
            self.tokens, self.ended = [], False

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def end(self):
            self.ended = True

    streamer = Recorder()
    out = pair.target.model.generate(
        PROMPT, custom_generate=decoder, do_sample=False, max_new_tokens=15, streamer=streamer
    )
    assert streamer.tokens == out[0].tolist() and streamer.ended


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 1.3}, "RepetitionPenaltyLogitsProcessor is not supported"),
        ({"logits_processor": [MinLengthLogitsProcessor(9, 1)]}, "MinLengthLogitsProcessor is not supported"),
        (
            {"logits_processor": [TemperatureLogitsWarper(4.0), TemperatureLogitsWarper(0.25)]},
            "once each and in this order",
        ),
        ({"logits_processor": [TopPLogitsWarper(0.6), TemperatureLogitsWarper(3.0)]}, "once each and in this order"),
        ({"logits_processor": [TopPLogitsWarper(0.6, min_tokens_to_keep=5)]}, "min_tokens_to_keep=5 is not supported"),
        ({"num_beams": 3}, "num_beams=3 is not supported"),
        ({"assistant_model": tiny_llama(seed=0)}, "assistant_model: the decoder drafts"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens: the decoder drafts"),
        ({"use_cache": False}, "use_cache: the decoder drafts"),
        ({"cache_implementation": "static"}, "cache_implementation: the decoder drafts"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores=True is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(pair, decoder, options, message):
    with pytest.raises(ValueError, match=message):
        pair.target.model.generate(PROMPT, custom_generate=decoder, do_sample=False, max_new_tokens=5, **options)


SETTINGS = {
    "repetition_penalty": 1.2,
    "encoder_repetition_penalty": 1.2,
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 3,
    "bad_words_ids": [[3]],
    "sequence_bias": [[[3], 1.0]],
    "min_length": 7,
    "min_new_tokens": 3,
    "forced_bos_token_id": 1,
    "forced_eos_token_id": 3,
    "exponential_decay_length_penalty": (2, 1.1),
    "suppress_tokens": [3],
    "begin_suppress_tokens": [3],
    "guidance_scale": 1.5,
    "remove_invalid_values": True,
    "watermarking_config": {"bias": 2.5, "greenlist_ratio": 0.25},
    "min_p": 0.1,
    "top_h": 0.5,
    "typical_p": 0.9,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.01,
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("of_the_target", [True, False])
def test_a_refusal_says_who_set_it_and_what_turns_it_off(pair, decoder, name, of_the_target, monkeypatch):
    model, options = pair.target.model, {"max_new_tokens": 4, "do_sample": True}
    monkeypatch.setattr(model.generation_config, "eos_token_id", 2)
    if of_the_target:
        monkeypatch.setattr(model.generation_config, name, SETTINGS[name])
    given = {} if of_the_target else {name: SETTINGS[name]}
    with pytest.raises(ValueError, match=f"(?s){name}=None") as error:
        model.generate(PROMPT, custom_generate=decoder, **options, **given)
    assert ("the target's own" in str(error.value)) == of_the_target
    set_seed(5)
    text = model.generate(PROMPT, custom_generate=decoder, **options, **{name: None})
    monkeypatch.setattr(model.generation_config, name, None)
    set_seed(5)
    assert torch.equal(text, model.generate(PROMPT, custom_generate=decoder, **options)), "what it names turns it off"


def test_logits_that_are_only_normalised_are_served(pair, decoder):
    options = {"max_new_tokens": 12, "do_sample": False, "renormalize_logits": True}
    model = pair.target.model
    assert torch.equal(model.generate(PROMPT, custom_generate=decoder, **options), model.generate(PROMPT, **options))


def test_a_cache_that_the_models_own_configuration_names_is_no_request(pair, decoder, monkeypatch):
    """As Gemma's names one."""
    model = pair.target.model
    expected = model.generate(PROMPT, do_sample=False, max_new_tokens=5)
    for own, asked in (
        ("static", {}),
        (None, {"cache_implementation": "dynamic"}),
    ):  # dynamic: Hugging Face's own default
        monkeypatch.setattr(model.generation_config, "cache_implementation", own)
        made = model.generate(PROMPT, custom_generate=decoder, do_sample=False, max_new_tokens=5, **asked)
        assert torch.equal(made, expected)


def test_stop_strings_as_a_criterion(pair, decoder):
    """Hugging Face takes ``stop_strings`` for a callable not at all: it keeps the tokenizer from it."""
    words = [f"w{token};" for token in range(pair.target.vocabulary_size - 1)] + [
        "abcdef"
    ]  # Hugging Face splits after it
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="abcdef"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    model = pair.target.model
    plain = model.generate(PROMPT, do_sample=False, max_new_tokens=12)
    stop = words[int(plain[0, 9])]
    expected = model.generate(PROMPT, do_sample=False, max_new_tokens=12, stop_strings=[stop], tokenizer=tokenizer)
    criteria = [StopStringCriteria(tokenizer, [stop])]
    made = model.generate(
        PROMPT, custom_generate=decoder, do_sample=False, max_new_tokens=12, stopping_criteria=criteria
    )
    assert torch.equal(made, expected) and made.shape[1] < plain.shape[1]


def test_batches_padding_and_other_models_are_refused(pair, decoder):
    model = pair.target.model
    with pytest.raises(ValueError, match="batch size 2"):
        model.generate(PROMPT.repeat(2, 1), custom_generate=decoder, max_new_tokens=5)
    mask = torch.tensor([[0, 1, 1, 1, 1]])
    with pytest.raises(ValueError, match="left padding"):
        model.generate(PROMPT, attention_mask=mask, custom_generate=decoder, max_new_tokens=5)
    spread = 2 * torch.arange(PROMPT.shape[1])[None]
    with pytest.raises(ValueError, match="position_ids"):
        model.generate(PROMPT, position_ids=spread, custom_generate=decoder, max_new_tokens=5)
    with pytest.raises(ValueError, match="another model"):
        tiny_llama(seed=9).generate(PROMPT, custom_generate=decoder, max_new_tokens=5)
