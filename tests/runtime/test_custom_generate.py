"""Use through ``model.generate(custom_generate=decoder)``."""

import pytest
import torch
from transformers import (
    MaxTimeCriteria,
    MinLengthLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
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


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "temperature": 2.0, "top_k": 1},
        {"do_sample": True, "top_p": 1e-6, "top_k": 0},
        {"do_sample": False, "logits_processor": [TemperatureLogitsWarper(5.0)]},
        {"do_sample": False, "renormalize_logits": True},
        {"do_sample": False, "cache_implementation": "dynamic"},
    ],
    ids=lambda options: "-".join(options),
)
def test_filters_arrive_and_greedy_stays_greedy(pair, decoder, options):
    model = pair.target.model
    greedy = model.generate(PROMPT, do_sample=False, max_new_tokens=20)
    assert torch.equal(greedy, model.generate(PROMPT, custom_generate=decoder, max_new_tokens=20, **options))


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


REFUSED = [
    ("MinLengthLogitsProcessor", {"logits_processor": [MinLengthLogitsProcessor(9, 1)]}),
    ("once each", {"logits_processor": [TemperatureLogitsWarper(4.0), TemperatureLogitsWarper(0.25)]}),
    ("in this order", {"logits_processor": [TopPLogitsWarper(0.6), TemperatureLogitsWarper(3.0)]}),
    ("min_tokens_to_keep=5", {"logits_processor": [TopPLogitsWarper(0.6, min_tokens_to_keep=5)]}),
    ("num_beams=3", {"num_beams": 3}),
    ("assistant_model", {"assistant_model": tiny_llama(seed=0)}),
    ("prompt_lookup_num_tokens", {"prompt_lookup_num_tokens": 3}),
    ("use_cache", {"use_cache": False}),
    ("cache_implementation", {"cache_implementation": "static"}),
    ("output_scores=True", {"return_dict_in_generate": True, "output_scores": True}),
    ("left padding", {"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}),
    ("position_ids", {"position_ids": 2 * torch.arange(5)[None]}),
]


@pytest.mark.parametrize(("message", "options"), REFUSED, ids=[message for message, _ in REFUSED])
def test_what_is_not_supported_is_refused_by_name(pair, decoder, message, options):
    with pytest.raises(ValueError, match=message):
        pair.target.model.generate(PROMPT, custom_generate=decoder, do_sample=False, max_new_tokens=5, **options)


def test_batches_and_other_models_are_refused(pair, decoder):
    with pytest.raises(ValueError, match="batch size 2"):
        pair.target.model.generate(PROMPT.repeat(2, 1), custom_generate=decoder, max_new_tokens=5)
    with pytest.raises(ValueError, match="another model"):
        tiny_llama(seed=9).generate(PROMPT, custom_generate=decoder, max_new_tokens=5)


SETTINGS = {"repetition_penalty": 1.2, "encoder_repetition_penalty": 1.2, "exponential_decay_length_penalty": (2, 1.1)}
SETTINGS |= {"no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 3, "bad_words_ids": [[3]], "top_h": 0.5}
SETTINGS |= {"sequence_bias": [[[3], 1.0]], "min_length": 7, "min_new_tokens": 3, "min_p": 0.1, "typical_p": 0.9}
SETTINGS |= {"forced_bos_token_id": 1, "forced_eos_token_id": 3, "suppress_tokens": [3], "begin_suppress_tokens": [3]}
SETTINGS |= {"guidance_scale": 1.5, "remove_invalid_values": True, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01}
SETTINGS |= {"watermarking_config": {"bias": 2.5, "greenlist_ratio": 0.25}}


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


def test_a_cache_that_the_models_own_configuration_names_is_no_request(pair, decoder, monkeypatch):
    """As Gemma's names one."""
    model = pair.target.model
    expected = model.generate(PROMPT, do_sample=False, max_new_tokens=5)
    monkeypatch.setattr(model.generation_config, "cache_implementation", "static")
    assert torch.equal(model.generate(PROMPT, custom_generate=decoder, do_sample=False, max_new_tokens=5), expected)
