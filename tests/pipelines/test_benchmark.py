import hashlib
import json
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from tqdm import tqdm

from pipelines import benchmark
from pipelines.measuring import arms
from pipelines.measuring.bare_replay import RecordedModel, record
from pipelines.measuring.exactness import check_exactness, first_difference
from pipelines.measuring.measurement import Measurement, MeasurementConfig
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.outputs import write_json
from pipelines.pair_folder import read_pair
from pipelines.prompt_table import Prompt
from predictors.rounds import RoundRecord
from runtime import ModelPair, Randomness, build_decoder
from tests.bundles import random_bundle
from tests.toys import tiny_llama

CONFIG = MeasurementConfig(
    max_new_tokens=6,
    validation_prompts=2,
    test_prompts=4,
    gammas=(1, 2),
    epsilons=(0.3,),
    threads=1,
    replay_prompts=1,
    replay_repeats=1,
    exactness_prompts=2,
)


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1, layers=1))


def prompts(count: int, split: str = "test") -> list[Prompt]:
    tokens = [[(7 * i + j) % 32 for j in range(5 + i)] for i in range(count)]
    return [
        Prompt(f"{split}-{i}", f"{split}-document-{i // 2}", "source", ("code", "prose")[i % 2], split, "", row)
        for i, row in enumerate(tokens)
    ]


def fake_arm(calls=None, name=""):
    def decode(prompt, temperature, seed):
        if calls is not None:
            calls.append((name, tuple(prompt), temperature, seed))
        return arms.Run([1, 2, 3], [RoundRecord(), RoundRecord(drafted=2, accepted=1, emitted=2, rolled_back=1)])

    return decode


def timing(path, config=CONFIG, calls=None, fingerprint="f", names=("autoregressive", "chain-1", "chain-2", "entropy")):
    runners = {name: fake_arm(calls, name) for name in names}
    return Measurement(config, runners, MeasurementLog(path / "log.jsonl", fingerprint), tqdm(disable=True))


def identity(row):
    return tuple(row[key] for key in ("split", "prompt", "temperature", "repeat", "arm"))


def test_every_arm_decodes_every_prompt_in_a_random_order_that_follows_from_the_seed(tmp_path):
    rows = timing(tmp_path / "a").time_split("test", prompts(4), ["autoregressive", "chain-1", "chain-2", "entropy"], 1)
    assert len(rows) == len({identity(row) for row in rows}) == 4 * 2 * 2 * 4
    frame = pd.DataFrame(rows)
    orders = frame.groupby(["prompt", "temperature", "repeat"])["arm"].agg(tuple)
    assert all(sorted(order) == ["autoregressive", "chain-1", "chain-2", "entropy"] for order in orders)
    assert orders.nunique() > 5  # 16 blocks, 24 orders
    first = {order[0] for order in orders}
    assert len(first) == 4
    again = timing(tmp_path / "b").time_split(
        "test", prompts(4), ["autoregressive", "chain-1", "chain-2", "entropy"], 1
    )
    assert [identity(row) for row in again] == [identity(row) for row in rows]


def test_repeats_share_a_seed_and_arms_do_not(tmp_path):
    calls: list = []
    timing(tmp_path, calls=calls).time_split("test", prompts(2), ["chain-1", "chain-2"], 1)
    seeds: dict = {}
    for name, prompt, temperature, seed in calls:
        seeds.setdefault((name, prompt, temperature), set()).add(seed)
    assert all(len(values) == 1 for values in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds)


def test_interrupted_measurement_resumes_to_the_same_rows(tmp_path):
    names = ["autoregressive", "chain-1"]
    whole = timing(tmp_path / "whole").time_split("test", prompts(4), names, 1)
    broken = timing(tmp_path / "broken")
    calls = []

    def interrupted(prompt, temperature, seed):
        calls.append(seed)
        if len(calls) == 11:
            raise KeyboardInterrupt
        return fake_arm()(prompt, temperature, seed)

    broken.arms = {**broken.arms, "chain-1": interrupted}
    with pytest.raises(KeyboardInterrupt):
        broken.time_split("test", prompts(4), names, 1)
    with (tmp_path / "broken" / "log.jsonl").open("a") as log:
        log.write('{"key": "cut off wh')
    calls = []
    resumed = timing(tmp_path / "broken", calls=calls)
    assert resumed.log.resumed == 10
    rows = resumed.time_split("test", prompts(4), names, 1)
    assert [identity(row) for row in rows] == [identity(row) for row in whole]
    assert len(calls) == 2 * (16 - 10)


def test_log_of_another_fingerprint_is_discarded(tmp_path):
    timing(tmp_path, fingerprint="old").time_split("test", prompts(1), ["chain-1"], 1)
    other = timing(tmp_path, fingerprint="new")
    assert other.log.resumed == 0
    assert "old" not in (tmp_path / "log.jsonl").read_text()


def test_time_cap_ends_after_a_whole_prompt(tmp_path):
    capped = MeasurementConfig(**{**vars(CONFIG), "max_minutes": 0.0})
    measurement = timing(tmp_path, config=capped)
    rows = measurement.time_split("test", prompts(4), ["chain-1"], 1)
    assert {row["prompt"] for row in rows} == {"test-0"}
    assert len(rows) == 4
    assert measurement.capped


def test_choice_is_the_fastest_on_validation_at_its_best_repeat(tmp_path):
    row = {"temperature": 0.0, "prompt": "a", "tokens": 10}
    rows = [{**row, "arm": "chain-1", "seconds": 1.0}, {**row, "arm": "chain-2", "seconds": 9.0}]
    rows += [{**row, "arm": "chain-2", "seconds": 0.5}]
    config = MeasurementConfig(**{**vars(CONFIG), "temperatures": (0.0,)})
    rows += [{**row, "arm": "confidence-0.3", "seconds": 1.0}]
    measurement = timing(tmp_path, config=config, names=("chain-1", "chain-2", "confidence-0.3"))
    static, confidence = measurement.choose(rows)
    assert (static["arm"], static["tokens_per_second"]) == ("chain-2", {"chain-1": 10.0, "chain-2": 20.0})
    assert confidence["arm"] == "confidence-0.3"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_both_sides_count_tokens_up_to_the_first_end_of_sequence(temperature):
    """Tiny vocabulary, so that every text ends early; Hugging Face and ours cut alike."""
    target, draft = (tiny_llama(vocabulary_size=4, seed=s, eos_token_id=2, pad_token_id=2) for s in (0, 1))
    pair = ModelPair(target, draft)
    runners = {
        name: arms.decoder_arm(d, 40) for name, d in arms.build_decoders(pair, (3,), (0.3,), "block", None).items()
    }
    runners |= {"hf": arms.hugging_face_arm(target, None, 40), "assisted": arms.hugging_face_arm(target, draft, 40)}
    ended = 0
    for seed in range(4):
        prompt = [seed % 2, 1, 3, seed % 4]
        runs = {name: arm(prompt, temperature, seed).tokens for name, arm in runners.items()}
        for tokens in runs.values():
            assert 2 not in tokens[:-1]
            assert len(tokens) == 40 or tokens[-1] == 2
            ended += tokens[-1] == 2
        if temperature == 0:
            assert len({tuple(tokens) for tokens in runs.values()}) == 1
    assert temperature == 0 or ended


def test_tokens_after_the_end_do_not_count():
    assert arms.cut_after([5, 2, 7, 2], {2}) == [5, 2]
    assert arms.cut_after([5, 7], ()) == [5, 7]


def test_assisted_generation_leaves_no_state_behind(pair):
    target, draft = pair.target.model, pair.draft.model
    before = draft.generation_config.to_dict()
    assisted = arms.hugging_face_arm(target, draft, 20)
    draft.generation_config.num_assistant_tokens_schedule = "heuristic"  # the schedule that writes back
    draft.generation_config.num_assistant_tokens = 5
    changed = draft.generation_config.to_dict()
    first = assisted([1, 2, 3], 1.0, 0).tokens
    assert draft.generation_config.to_dict() == changed
    assisted([4, 5, 6], 1.0, 1)
    assert assisted([1, 2, 3], 1.0, 0).tokens == first
    draft.generation_config.num_assistant_tokens_schedule = None
    draft.generation_config.num_assistant_tokens = None
    assert draft.generation_config.to_dict() == before


class CountingModel:
    """A model whose passes are counted: (name, rows) in order."""

    def __init__(self, model, name, passes):
        self.model, self.name, self.passes = model, name, passes

    def __getattr__(self, name):
        return getattr(self.model, name)

    def open(self, *arguments):
        state, outer = self.model.open(*arguments), self

        class Counting:
            keep = staticmethod(state.keep)

            def forward(self, tokens, parents=None, last=None):
                outer.passes.append((outer.name, list(map(int, tokens))))
                return state.forward(tokens, parents, last)

        return Counting()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["autoregressive", "chain-2"])
def test_replay_repeats_the_passes_of_the_decode(pair, name, temperature):
    passes: list = []
    counted = ModelPair(CountingModel(pair.target, "target", passes), CountingModel(pair.draft, "draft", passes))
    decoder = arms.build_decoders(counted, (2,), (0.3,), "block", None)[name]
    options = {"max_new_tokens": 12, "temperature": temperature}
    replay = record(decoder, [1, 2, 3], randomness=Randomness(0), **options)
    recorded = list(passes)
    passes.clear()
    replay()
    assert passes == recorded
    passes.clear()
    decoder.generate([1, 2, 3], randomness=Randomness(0), **options)
    assert passes == recorded
    assert {who for who, _ in recorded} == ({"target"} if name == "autoregressive" else {"target", "draft"})


def test_recording_does_not_change_the_text(pair):
    decoder = build_decoder(pair, {"method": "autoregressive"})
    recorded = ModelPair(RecordedModel(pair.target, [], []), None)
    again = build_decoder(recorded, {"method": "autoregressive"})
    assert again.generate([1, 2], max_new_tokens=8).tokens == decoder.generate([1, 2], max_new_tokens=8).tokens


def test_exactness_check_passes_for_our_decoders_and_reports_where_others_differ(pair):
    options = {"gammas": (1, 3), "epsilons": (0.3,), "verifier": "block", "bundle": None}
    rows = check_exactness(pair, [[1, 2, 3], [4, 5]], 12, options)
    assert all(row["exact_float32"] and row["differs"] == [None, None] for row in rows)
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


@pytest.fixture(scope="module")
def stage(tmp_path_factory, monkeymodule):
    """The whole stage on tiny models: its arguments, already run once."""
    folder = tmp_path_factory.mktemp("stage")
    for name, model in (("target", tiny_llama(seed=0)), ("draft", tiny_llama(seed=1, layers=1))):
        model.save_pretrained(folder / "pair" / name)
    facts = {"source": "builtin", "pair": "p", "target": "target", "draft": "draft", "tokenizer": "none"}
    write_json(folder / "pair" / "pair.json", facts)
    params = {"pairs": {"p": {"benchmark": {k: v for k, v in vars(CONFIG).items() if v is not None}}}}
    params["pairs"]["p"]["benchmark"] |= {"gammas": [1, 2], "epsilons": [0.3], "temperatures": [0.0, 1.0]}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    write_json(folder / "device.json", {"slug": "toy-1c", "cpu": "toy", "cores": 1, "gpus": [], "bfloat16_flags": []})
    monkeymodule.setattr("pipelines.prompt_table.read_prompts", lambda path, split, limit: prompts(limit, split))
    args = SimpleNamespace(
        pair="p",
        device=folder / "device.json",
        pair_folder=folder / "pair",
        prompts=folder / "prompts",
        bundles=folder / "bundles",
        output=folder / "benchmark",
        params=folder / "params.yaml",
    )
    benchmark.run(args)
    return args


@pytest.fixture(scope="module")
def monkeymodule():
    patch = pytest.MonkeyPatch()
    yield patch
    patch.undo()


def test_stage_writes_all_rows_and_their_origin(stage):
    folder = stage.output / "toy-1c"
    rows = pd.read_parquet(folder / benchmark.MEASUREMENTS)
    test = rows[rows["split"] == "test"]
    assert set(test["arm"]) == {
        *("autoregressive", "hf_generate", "hf_assisted"),
        *("chain-1", "chain-2", "confidence-0.3", "entropy"),
    }
    assert len(test) == 7 * 4 * 2 * 2
    assert (test["tokens"] == 6).all()
    ours = test[test["rounds"].notna()]
    phases = ours[["seconds_draft", "seconds_target", "seconds_verify", "seconds_controller", "seconds_rest"]]
    assert phases.sum(axis=1).to_numpy() == pytest.approx(ours["seconds"].to_numpy())
    assert (ours["emitted"] + 1 == ours["tokens"]).all()
    assert ours["accepted_histogram"].map(sum).eq(ours["rounds"]).all()
    assert (test[test["temperature"] == 0].groupby("arm")["equals_plain"].count() > 0).all()
    findings = json.loads((folder / benchmark.FINDINGS).read_text())
    assert len(findings["choices"]) == 4
    assert all(row["exact_float32"] for row in findings["exactness"])
    assert "hrad is left out" in findings["notes"][-1]
    origin = json.loads((folder / benchmark.PROVENANCE).read_text())
    assert origin["device"]["slug"] == "toy-1c"
    assert origin["bundle_sha256"] is None
    assert origin["parameters"]["gammas"] == [1, 2]
    assert len(pd.read_parquet(folder / benchmark.REPLAYS)) == 4
    assert not (folder / benchmark.PARTIAL).exists()


def test_stage_leaves_the_numbers_of_other_devices(stage):
    other = stage.output / "other-device"
    other.mkdir()
    (other / "kept").write_text("kept")
    benchmark.run(stage)
    assert (other / "kept").exists()


def test_bundle_is_timed_and_its_fallback_is_noted(stage, tmp_path):
    location = read_pair(stage.pair_folder)
    random_bundle(tmp_path / "hrad", ModelPair.load(location.target, location.draft), temperatures=(0.0,))
    args = SimpleNamespace(**{**vars(stage), "bundles": tmp_path, "output": tmp_path / "benchmark"})
    benchmark.run(args)
    folder = args.output / "toy-1c"
    rows = pd.read_parquet(folder / benchmark.MEASUREMENTS)
    hrad = rows[rows["arm"] == "hrad"]
    assert len(hrad) == 4 * 2 * 2
    findings = json.loads((folder / benchmark.FINDINGS).read_text())
    assert {row["arm"]: row["exact_float32"] for row in findings["exactness"]}["hrad"]
    assert findings["bundle"]["thresholds"]["static_gamma"] == 2
    assert len(findings["notes"]) == 2
    assert "hrad is bypassed" in findings["notes"][0]
    assert findings["notes"][1] == "T=1: hrad stood aside in 100% of its rounds (static gamma instead)"
    assert len(json.loads((folder / benchmark.PROVENANCE).read_text())["bundle_sha256"]) == 64


def test_the_code_hash_covers_real_files(tmp_path, monkeypatch):
    from pipelines import benchmark
    from pipelines.measuring import provenance

    before = provenance.source_hash(benchmark.TIMED_CODE)
    assert before != hashlib.sha256().hexdigest() and before == provenance.source_hash(benchmark.TIMED_CODE)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "code").mkdir()
    with pytest.raises(AssertionError, match="holds no Python files"):
        provenance.source_hash(["code"])
    (tmp_path / "code" / "a.py").write_text("x = 1")
    one = provenance.source_hash(["code"])
    (tmp_path / "code" / "a.py").write_text("x = 2")
    assert provenance.source_hash(["code"]) != one
