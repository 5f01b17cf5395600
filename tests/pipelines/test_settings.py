"""What tuning found in the words of other engines, and Hugging Face decoding by them."""

import json
import math
import re
import shlex
from itertools import pairwise

import pytest
import torch
from transformers.generation import AssistedCandidateGenerator, GenerationConfig, PromptLookupCandidateGenerator

from pipelines.cli import main
from pipelines.commands.settings import ENGINES, Rule, rule_of, said
from pipelines.measuring.names import CHOICES, PROVENANCE
from pipelines.outputs import write_json
from predictors.sampling import SamplingSettings
from runtime.drafting.chain import LookupConfig
from tests.toys import tiny_llama

MODELS = {"target": ("org/big", "c1", "bfloat16"), "draft": ("org/small", "c2", "bfloat16")}
GREEDY, SAMPLED = SamplingSettings(0.0), SamplingSettings(1.0)


def chain(gamma, **controller):
    decoder = {"method": "speculative", "verifier": "block", "drafter": {"kind": "chain", "gamma": gamma}}
    return {"decoder": decoder | ({"controller": controller} if controller else {})}


CANDIDATES = {  # by name: what is served, and its speed-up as a logarithm
    "source": ({"bundle": "source"}, 0.6),
    "takeover-2 chain-3": (chain(12, kind="takeover", match=2, length=8, otherwise={"kind": "fixed", "gamma": 3}), 0.5),
    "confidence-0.2": (chain(12, kind="confidence", epsilon=0.2), 0.45),
    "lookup-2": ({"decoder": {"method": "speculative", "drafter": {"kind": "lookup", "least": 2, "length": 8}}}, 0.4),
    "chain-4": (chain(4), 0.3),
    "autoregressive": ({"decoder": {"method": "autoregressive"}}, 0.0),
}


def choice(setting, names):
    def timed(value, error):
        ends = zip(("value", "low", "high"), (value, value - error, value + error), strict=True)
        return {"gain": {name: math.expm1(end) for name, end in ends}, "prompts": 8, "basis": "clock"}

    rows = []
    for name in names:
        served, value = CANDIDATES[name]
        row = {"name": name, "family": "chain", "predicted": 1.0, "served": served}
        rows.append(row | {"speedup": timed(value, 0.196 if value else 0.0)})
    gains = {"autoregressive": {"gain": {"value": 0.72, "low": 0.64, "high": 0.8}, "prompts": 60, "basis": "clock"}}
    return {"setting": setting, "winner": names[0], "static": "chain-4", "candidates": rows, "gains": gains}


@pytest.fixture
def tuned(tmp_path):
    """Everything is a candidate of greedy decoding; of sampling only what no engine has words for, and plain decoding."""
    write_json(tmp_path / "device.json", {"slug": "toy-1c"})
    facts = {"target": "org/big", "draft": "org/small", "tokenizer": "org/big", "dtype": "bfloat16"}
    write_json(tmp_path / "toy/pair/pair.json", facts | {"revisions": {"target": "c1", "draft": "c2"}})
    folder = tmp_path / "toy/tuning/toy-1c"
    write_json(folder / CHOICES, [choice("T=0", list(CANDIDATES)), choice("T=1", ["source", "autoregressive"])])
    device = {"cpu": "Toy", "slug": "toy-1c"}
    origin = {"pair": "toy", "device": device, "commit": "0ddba11", "date": "today"}
    write_json(folder / PROVENANCE, origin | {"parameters": {"temperatures": [0.0, 1.0]}})
    return tmp_path


def options(line):
    return dict(pairwise(shlex.split(line)))


def written(tuned, capsys, engine):
    main(["settings", "--pair", "toy", "--data", str(tuned), "--for", engine])
    text = capsys.readouterr().out
    return text, [line for line in text.splitlines() if line and not line.startswith("#")]


def test_every_engine_is_told_the_fastest_that_it_has_words_for(tuned, capsys):
    text, (greedy, sampled) = written(tuned, capsys, "vllm")
    looked = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 16}
    assert json.loads(options(greedy)["--speculative-config"]) == looked
    server = ["python", "-m", "vllm.entrypoints.openai.api_server"]
    assert shlex.split(sampled) == [*server, "--model", "org/big", "--revision", "c1", "--dtype", "bfloat16"]
    assert "0ddba11" in text and "toy-1c" in text
    assert ("+72.0%", "+64.0%", "+80.0%") in re.findall(r"(\S+%) \((\S+%) to (\S+%)\)", text)
    low, high = (math.expm1(0.4 + side * 0.196) for side in (-1, 1))
    assert f"lookup-2, {math.expm1(0.4):+.1%} ({low:+.1%} to {high:+.1%})" in text
    beyond = [line.split(": ")[1].split(" (")[0] for line in text.splitlines() if "has no words" in line]
    assert beyond == ["source", "takeover-2 chain-3", "confidence-0.2", "source"]

    greedy = options(written(tuned, capsys, "sglang")[1][0])
    assert greedy["--speculative-algorithm"] == "STANDALONE" and greedy["--speculative-draft-model-path"] == "org/small"
    sizes = ("num-steps", "eagle-topk", "num-draft-tokens")
    assert [greedy[f"--speculative-{name}"] for name in sizes] == ["4", "1", "5"]
    assert (greedy["--revision"], greedy["--dtype"]) == ("c1", "bfloat16") and greedy[
        "--speculative-draft-model-revision"
    ] == "c2"

    greedy = options(written(tuned, capsys, "llama.cpp")[1][0])
    assert greedy["--spec-type"] == "ngram-simple,draft-simple" and greedy["--spec-draft-n-max"] == "3"
    assert greedy["--spec-ngram-simple-size-n"] == "2" and greedy["--spec-ngram-simple-size-m"] == "8"


def test_nothing_tuned_is_refused(tuned, capsys):
    with pytest.raises(SystemExit, match="toi/tuning: nothing was tuned"):
        main(["settings", "--pair", "toi", "--data", str(tuned), "--for", "vllm"])
    (tuned / "toy/tuning/toy-1c" / CHOICES).unlink()
    with pytest.raises(SystemExit, match="draftwright tune --pair toy"):
        written(tuned, capsys, "vllm")


def test_draft_models_of_vllm_are_sampled_where_the_target_is():
    lines = [options(said("vllm", Rule(4), one, MODELS)) for one in (GREEDY, SAMPLED)]
    config = [json.loads(line["--speculative-config"]) for line in lines]
    model = {"method": "draft_model", "model": "org/small", "revision": "c2", "num_speculative_tokens": 4}
    assert config == [model | {"draft_sample_method": how} for how in ("greedy", "probabilistic")]


def test_a_threshold_of_llama_cpp_and_what_no_engine_can_say():
    line = options(said("llama.cpp", rule_of(CANDIDATES["confidence-0.2"][0]), GREEDY, MODELS))
    assert (line["--spec-draft-p-min"], line["--spec-draft-n-max"]) == ("0.2", "12")
    for served in (
        {"bundle": "hrad"},
        {"decoder": {"preset": "pearl", "gamma": 4}},
        chain(4, kind="entropy"),
        chain(12, kind="confidence", epsilon=0.2, product=True),
        chain(12, kind="takeover", match=4, length=8, tail=2, otherwise={"kind": "fixed", "gamma": 3}),
    ):
        assert all(rule_of(served).missing(engine) for engine in ENGINES)
    assert rule_of(chain(12, kind="roc")).missing("transformers") == []


@pytest.mark.parametrize(
    ("rule", "most"), [(Rule(4), 4), (Rule(6, 0.999), 1), (Rule(lookup=LookupConfig(length=3, longest=2)), 3)]
)
def test_transformers_decodes_by_its_settings(rule, most, monkeypatch):
    """It drafts as many tokens as it was told, stops after the first below a high threshold, and writes the target's own text."""
    target, draft = tiny_llama(seed=0), tiny_llama(seed=0)
    with torch.no_grad():
        draft.lm_head.weight.add_(0.3 * torch.randn_like(draft.lm_head.weight))
    drafted = []
    for kind in (AssistedCandidateGenerator, PromptLookupCandidateGenerator):

        def counted(self, input_ids, *rest, _own=kind.get_candidates, **more):
            made = _own(self, input_ids, *rest, **more)
            if input_ids.shape[1] + 6 < 32:  # else it is cut to what is left to write
                drafted.append(made[0].shape[1] - input_ids.shape[1])
            return made

        monkeypatch.setattr(kind, "get_candidates", counted)
    made = {"SETTINGS": {}}
    exec(said("transformers", rule, GREEDY, MODELS), made)
    told = made["SETTINGS"]["T=0"]
    GenerationConfig(**told["draft"], **told["generate"]).validate(strict=True)
    ids = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2]])
    plain = target.generate(ids, do_sample=False, max_new_tokens=24)
    draft.generation_config.update(**told["draft"])
    assistant = {"assistant_model": draft} if told["draft"] else {}
    assert torch.equal(target.generate(ids, max_new_tokens=24, **assistant, **told["generate"]), plain)
    assert len(drafted) > 2 and max(drafted) == most
    assert not rule.drafted or set(drafted) == {most}
