"""What tuning times and chooses, on arms of known speed: nothing twice, and nothing by test prompts."""

import math
from dataclasses import asdict

import pytest

from pipelines.measuring import harness as harness_module
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import Run, TimedArm
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.names import CHAIN, PLAIN, SELECTOR
from pipelines.measuring.tuning.candidates import Candidate, Measured
from pipelines.measuring.tuning.study import TuneConfig, TuneStudy
from predictors.sampling import SamplingSettings
from tests.pipelines.toy_bench import toy_prompts

GREEDY, SAMPLED = SamplingSettings(0.0), SamplingSettings(1.0)
PREDICTED = {"rule": 200.0, "head": 190.0, "chain-4": 180.0, "chain-2": 170.0, "chain-1": 120.0, PLAIN: 100.0}
CLOCK = {"rule": 170.0, "head": 210.0, "chain-4": 150.0, "chain-2": 180.0, "chain-1": 120.0, PLAIN: 100.0}
PROMPTS = {split: toy_prompts(8, split) for split in ("validation", "test")}


def served(name):
    return {"bundle": name} if name == "head" else {"decoder": {"method": name}}


def found(predicted=PREDICTED):
    families = {name: CHAIN if name.startswith("chain") else "family" for name in predicted} | {"head": SELECTOR}
    made = [Candidate(name, families[name], served(name), rate) for name, rate in predicted.items()]
    return sorted(made, key=lambda one: one.predicted, reverse=True)


def measured(rates, split="validation", settings=GREEDY, prompts=PROMPTS):
    """What stage ``measure`` left: every arm of ``rates`` on every prompt of a split."""
    rows = [
        {
            "arm": name,
            "prompt": prompt.id,
            "document": prompt.document,
            "slice": prompt.slice,
            "split": split,
            **asdict(settings),
            "block": f"{split}/{prompt.id}/{settings.name}/0",
            "tokens": 10,
            "seconds": 10 / rate,
        }
        for name, rate in rates.items()
        for prompt in prompts[split]
    ]
    arms = [ArmRow(name, "family", **served(name)) for name in PREDICTED]
    return Measured(rows, tuple(arms))


def together(*some):
    return Measured([row for one in some for row in one.rows], some[0].arms)


@pytest.fixture
def tuning(monkeypatch, tmp_path):
    """Studies of arms that decode nothing and take as long as ``rates`` by split say; their decodes are in ``decoded``."""
    decoded = []

    def study(already=None, rates=None, log="log", choices=None, **config):
        rates = {"validation": CLOCK, "test": CLOCK} | (rates or {})

        class Builder:
            def build(self, rows):
                return {row.name: TimedArm(row.name, row.family, arm(row.name)) for row in rows}

        def arm(name):
            def decode(prompt, settings, seed):
                decoded.append(name)
                return Run([0] * 10, None)

            return decode

        def timed(decode):
            split = "test" if tuple(decode.args[0]) in TEST_TOKENS else "validation"
            return decode(), 10 / rates[split][decoded[-1]]

        monkeypatch.setattr(harness_module, "timed", timed)
        options = {"temperatures": (0.0,), "candidates": 2, "validation_prompts": 4, "test_prompts": 4, "led": False}
        made = TuneConfig(**{**options, **config})
        some = {settings: found((choices or {}).get(settings, PREDICTED)) for settings in made.settings}
        counts = {"validation": made.validation_prompts, "test": made.test_prompts}
        prompts = {split: PROMPTS[split][:count] for split, count in counts.items()}
        args = (made, some, already or Measured([]), tmp_path, prompts, MeasurementLog(tmp_path / log, "f"))
        new = TuneStudy(None, *args)
        new.builder = Builder()
        return new

    return study, decoded


TEST_TOKENS = {(99, *prompt.tokens) for prompt in PROMPTS["test"]}
PROMPTS["test"] = [type(one)(**{**vars(one), "tokens": [99, *one.tokens]}) for one in PROMPTS["test"]]


def timed_on(study, split):
    return {(row["arm"], row["prompt"]) for row in study.rows if row["split"] == split}


def test_candidates_that_nobody_timed_decode_validation_prompts_and_the_winner_test_prompts(tuning):
    new, decoded = tuning
    study = new()
    (one,) = study.run()
    assert one.winner.name == "head" and [rival.name for rival in one.rivals] == ["chain-2", PLAIN]
    four = [prompt.id for prompt in PROMPTS["validation"][:4]]
    assert timed_on(study, "validation") == {
        (arm, prompt) for arm in ("rule", "head", "chain-4", "chain-2", PLAIN) for prompt in four
    }
    assert {arm for arm, _ in timed_on(study, "test")} == {"head", "chain-2", PLAIN}
    assert one.record["score"][PLAIN]["gain"]["value"] == pytest.approx(1.1)
    assert one.record["score"]["chain-2"]["gain"]["value"] == pytest.approx(210 / 180 - 1)
    assert one.record["score"]["chain-2"]["prompts"] == 4
    assert len(decoded) == len(study.rows) + 5 + 3, "one warm-up each"


def test_what_is_measured_already_is_not_timed_again(tuning):
    new, decoded = tuning
    study = new(together(measured(CLOCK), measured(CLOCK, "test")))
    (one,) = study.run()
    assert one.winner.name == "head" and study.rows == [] and decoded == []
    assert one.record["score"][PLAIN] == {
        "prompts": 8,
        "gain": pytest.approx({"value": 1.1, "low": 1.1, "high": 1.1}),
        "basis": "clock",
    }
    considered = {made["name"]: made["speedup"] for made in one.record["candidates"]}
    assert set(considered) == set(PREDICTED), "what was measured is considered, whatever replay thought of it"
    assert considered["chain-1"]["documents"] == 4


def test_test_prompts_have_no_say_in_the_choice(tuning):
    new, _ = tuning
    turned = CLOCK | {"rule": 9000.0, "head": 105.0}
    study = new(together(measured(CLOCK), measured(turned, "test")))
    (one,) = study.run()
    assert one.winner.name == "head" and one.record["score"][PLAIN]["gain"]["value"] == pytest.approx(0.05)
    (swapped,) = new(together(measured(turned), measured(CLOCK, "test")), log="other").run()
    assert swapped.winner.name == "rule", "on validation prompts the same times decide"


def test_every_setting_has_a_choice_of_its_own(tuning):
    new, _ = tuning
    flat = dict(PREDICTED, head=101.0)
    study = new(temperatures=(0.0, 1.0), choices={SAMPLED: flat})
    greedy, sampled = study.run()
    assert (greedy.winner.name, sampled.winner.name) == ("head", "chain-2")
    at = {(row["arm"], row["temperature"]) for row in study.rows if row["split"] == "validation"}
    assert ("head", 0.0) in at and ("head", 1.0) not in at and ("rule", 1.0) in at


def test_as_good_as_ties_go_to_the_plainer(tuning):
    new, _ = tuning
    rates = {"validation": CLOCK | {"chain-2": 209.0}}
    assert new(rates=rates, replay_error=1e-6).run()[0].winner.name == "chain-2"
    assert new(rates=rates, tie=0.0, replay_error=1e-6, log="other").run()[0].winner.name == "head"


def test_a_lead_over_a_candidate_of_another_basis_has_to_be_longer(tuning):
    """Bases are wrong in ways of their own: a lead that would do among rules is none of a tree over a chain."""
    new, _ = tuning
    known = {name: rate for name, rate in PREDICTED.items() if name != "rule"}
    (one,) = new(rates={"validation": known | {"head": 188.0}}, choices={GREEDY: known}).run()
    assert one.record["replay"]["spread"] < math.log(188 / 180) and one.winner.name == "chain-4"


def test_a_choice_that_an_interrupted_run_made_stands(tuning):
    """Time may have run out before it: with the prompts that are left another candidate would win, and its decodes be missing."""
    new, _ = tuning
    first = new(max_minutes=0.0)
    first._time("validation", {GREEDY: first._untimed(GREEDY)}, 1.0)
    assert first._chosen(GREEDY).winner.name == "rule"
    again = new()
    assert again.blocks.log.resumed == 2
    (one,) = again.run()
    assert one.winner.name == "rule" and {arm for arm, _ in timed_on(again, "test")} == {"rule", "chain-4", PLAIN}
    assert new(log="fresh").run()[0].winner.name == "head"
