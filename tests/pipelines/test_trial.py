"""A bundle on trial: what is timed beside it and on which prompts, what a look adds, and what keeps a bundle from being tried."""

import dataclasses
import json
import re
import shutil
import warnings
from types import SimpleNamespace

import pytest
import yaml
from tqdm import tqdm

from pipelines import trial as trial_stage
from pipelines.evidence.allocation import allocated, turns_of
from pipelines.evidence.ledger import Replayed
from pipelines.measuring.arm_builder import ArmBuilder
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import Run
from pipelines.measuring.bench import digest
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.harness import Harness, apart
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.names import DECODES_FILE, FINDINGS, PROVENANCE, ROUNDS_FILE
from pipelines.measuring.provenance import versions
from pipelines.measuring.tables import read_decodes, write_decodes, write_rounds
from pipelines.outputs import write_json
from pipelines.pair_folder import read_facts
from pipelines.promotion import attempt as one_look
from pipelines.promotion import candidate, trial
from pipelines.promotion.attempt import attempt
from pipelines.promotion.bounds import Bounds
from pipelines.promotion.calibration import Calibration, calibration_of
from pipelines.promotion.evidence_file import read_evidence
from pipelines.promotion.gate import judge
from pipelines.promotion.names import CHALLENGER, CHAMPION, VERDICT
from pipelines.promotion.plan import TrialConfig, load_plan
from pipelines.prompt_table import FILE, Prompt, write_prompts
from predictors.bundle import bundle_hash
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair
from runtime.serving_record import read_serving
from tests.bundles import auto_bundle, random_bundle, routed_bundle, selector_bundle, settings_bundle, stop_bundle
from tests.pipelines.hand_made_decodes import decodes
from tests.pipelines.toy_bench import toy_bench, toy_prompts

RATES = {"autoregressive": 5.0, "chain-2": 9.0, "chain-4": 10.0, "champion": 11.0, "challenger": 12.0}


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """Two random controllers of a toy pair."""
    folder = tmp_path_factory.mktemp("trial")
    toy_bench(folder, "unused", {})
    pair = ModelPair.load(target=str(folder / "pair" / "target"), draft=str(folder / "pair" / "draft"))
    bundles = {
        who: random_bundle(folder / who, pair, seed=seed, temperatures=temperatures, change=measured)
        for who, seed, temperatures in ((CHALLENGER, 0, (0.0,)), (CHAMPION, 1, (0.0, 1.0)))
    }
    return pair, bundles


def measured(card):
    card["measured_quality"] = {"metrics": {"ece": 0.02}}


def test_arms_take_turns_in_blocks_and_finished_blocks_are_kept(tried, tmp_path):
    pair, bundles = tried
    settings = candidate.settings_of(*bundles.values())
    config = TrialConfig(gammas=(1, 2))
    arms = ArmBuilder(pair, tmp_path, 6).build(trial.arms_of(config, bundles))
    assert set(arms) == {"autoregressive", "chain-1", "chain-2", "challenger", "champion"}
    prompts = toy_prompts(3)
    log, bar = MeasurementLog(tmp_path / "log.jsonl", "f"), tqdm(disable=True)
    timing = Blocks(log, bar)
    rows, rounds = apart(Harness(timing, settings, repeats=2).race(arms, prompts))
    blocks = {row["block"] for row in rows}
    assert len(blocks) == 3 * 2 * 2 and len(rows) == len(blocks) * 5 and not timing.capped
    assert {one["block"] for one in rounds} == blocks
    for block in blocks:
        inside = [row for row in rows if row["block"] == block]
        assert sorted(row["order"] for row in inside) == list(range(5)) and len({row["seed"] for row in inside}) == 1
    assert len({tuple(row["arm"] for row in rows if row["block"] == block) for block in blocks}) > 1, "fresh orders"
    greedy = {(row["prompt"], row["arm"]): row["tokens"] for row in rows if row["temperature"] == 0}
    assert all(greedy[prompt, arm] == greedy[prompt, "autoregressive"] for prompt, arm in greedy)
    assert {row["family"] for row in rows} == {"plain", "chain", "challenger", "champion"}
    again, _ = apart(Harness(timing, settings, repeats=2).race({}, prompts))
    assert again == rows, "all blocks are in the log"
    capped = Blocks(MeasurementLog(tmp_path / "other.jsonl", "f"), bar, max_minutes=0.0)
    assert len({row["prompt"] for row in Harness(capped, settings).race(arms, prompts)}) == 1 and capped.capped


def look(number=1, documents_left=30):
    return trial.Look(number, tuple(toy_prompts(4)), documents_left)


def evidence_of(bundle, champion=None, rates=RATES, **options):
    rows = decodes(lambda arm, *where: rates[arm])
    bounds = Bounds(slice_documents=2, min_documents=2)
    return trial.evidence_of(
        ("p", "hrad", bundle), rows, look(), bounds, {"one": True}, ["t"], {"device": "toy"}, champion, **options
    )


def test_a_trial_is_evidence(tried):
    _, bundles = tried
    made = evidence_of(bundles[CHALLENGER])
    assert made.champion is None and made.reference == "chain-4" and made.calibration_error == 0.02
    assert set(made.gains) == {"autoregressive", "chain-2", "chain-4"} and made.documents == tuple("abcde")
    assert made.gains["chain-4"].gain == pytest.approx(0.2) and (made.look, made.documents_left) == (1, 30)
    assert made.bundle_sha256 == bundle_hash(bundles[CHALLENGER]) and made.origin["device"] == "toy"
    champion = bundle_hash(bundles[CHAMPION])
    beside = evidence_of(bundles[CHALLENGER], champion)
    assert (beside.champion, beside.reference) == (champion, "champion")
    assert beside.gains["champion"].gain == pytest.approx(12 / 11 - 1)


def own_documents(count, split):
    """Prompts of alternating slices, each of its own document."""
    return [
        Prompt(**(vars(prompt) | {"document": f"{split}-document-{place}"}))
        for place, prompt in enumerate(toy_prompts(count, split))
    ]


def test_every_look_opens_new_documents(tmp_path):
    """The reserve's first two documents are test documents, too: they are nothing new."""
    reserve = own_documents(8, "reserve")
    reserve[:2] = [Prompt(**(vars(one) | {"document": f"test-document-{n}"})) for n, one in enumerate(reserve[:2])]
    write_prompts(tmp_path / FILE, [*own_documents(4, "test"), *reserve])
    config = TrialConfig(test_prompts=4, reserve_prompts=3)
    looks = [trial.Look.of(number, tmp_path, config) for number in (1, 2, 3, 4)]
    assert [len(one.prompts) for one in looks] == [4, 7, 10, 12] and [one.documents_left for one in looks] == [
        6,
        5,
        2,
        0,
    ]
    assert looks[2].prompts[:7] == looks[1].prompts and len(looks[0].documents) == 4
    with pytest.raises(
        ValueError, match="look 5 finds no new document among 8 prompts of the reserve: documents exhausted"
    ):
        trial.Look.of(5, tmp_path, config)
    with pytest.raises(ValueError, match="look 2 finds no new document"):
        trial.Look.of(2, tmp_path, TrialConfig(test_prompts=4, reserve_prompts=2))
    write_prompts(tmp_path / FILE, reserve)
    with pytest.raises(ValueError, match="no test prompts"):
        trial.Look.of(1, tmp_path, config)


def test_slices_are_timed_in_proportion_to_their_documents():
    """87, 21 and 11 documents: of 60 prompts 44, 11 and 5; or 8 of the smallest. Every slice keeps its own order."""
    mix = {"code": 87.0, "prose": 21.0, "tables": 11.0}
    prompts = [
        Prompt(f"{name}{n}", f"{name}{n}", "", name, "test", "", []) for n in range(80) for name in (*mix, "edit")
    ]

    def counted(least, count=60):
        made = allocated(prompts, mix, count, least)
        for name in mix:
            own = [prompt.id for prompt in made if prompt.slice == name]
            assert own == [f"{name}{n}" for n in range(len(own))]
        return [sum(prompt.slice == name for prompt in made) for name in mix]

    assert counted(0) == [44, 11, 5] and counted(8) == [42, 10, 8]
    assert allocated(prompts, mix, 60)[:30] == allocated(prompts, mix, 30), "looks are nested"
    assert len(allocated(prompts, mix, 999)) == 240, "no more than there are, and no edits"
    assert (
        turns_of({"code": 1, "prose": 5}, mix, 4) == ["code", "prose", "prose", "prose"] and turns_of({}, mix, 0) == []
    )


def test_settings_are_those_of_challenger_and_champion_with_their_filters(tried, tmp_path):
    pair, bundles = tried

    def filtered(card):
        card["contract"]["serving_range"]["settings"] = [[0.0, 0.0, 1.0], [1.0, 20.0, 0.9]]

    other = random_bundle(tmp_path / "other", pair, change=filtered)
    settings = candidate.settings_of(bundles[CHAMPION], other)
    assert [made.name for made in settings] == ["T=0", "T=1", "T=1, top-k 20, top-p 0.9"]
    assert settings[0] == SamplingSettings(0.0)


def test_auto_is_calibrated_as_badly_as_the_worst_of_its_bundles(tried, tmp_path):
    pair, bundles = tried
    settings = {"method": "autoregressive"}
    whole = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], settings)
    assert calibration_of(whole) == calibration_of(bundles["challenger"]) == Calibration(0.02)
    alone = auto_bundle(tmp_path / "alone", pair, [{"settings": {"temperature": 0.0}, "decoder": settings}])
    assert calibration_of(alone) == Calibration(None, "no model to calibrate")


def unmeasured(card):
    card["measured_quality"] = {"tokens": {"ece": None}}


def test_a_model_of_unknown_calibration_is_not_exempt(tried, tmp_path):
    pair, bundles = tried
    for name, change in (("hrad", unmeasured), ("other", None)):
        assert calibration_of(random_bundle(tmp_path / name, pair, change=change)) == Calibration(None)
    assert calibration_of(stop_bundle(tmp_path / "stop", pair, change=unmeasured)) == Calibration(None)
    selector = selector_bundle(tmp_path / "selector", pair)
    assert "forecasts no probabilities" in calibration_of(selector).exemption

    def routed(place, *names):
        return auto_bundle(tmp_path / place, pair, [{"settings": {}, "bundle": name} for name in names])

    for place, names, wanted in (
        ("a", ("hrad", "good"), Calibration(None)),
        ("b", ("selector", "good"), Calibration(0.02)),
        ("c", ("selector",), calibration_of(selector)),
    ):
        whole = routed(place, *names)
        for name in names:
            shutil.copytree(bundles["challenger"] if name == "good" else tmp_path / name, whole / name)
        assert calibration_of(whole) == wanted


def test_what_the_pair_was_trained_on_is_known_too():
    """By the names that its documents would have among test prompts; a twin that forgets the pair passes the gate's check."""
    facts = {"source": "builtin", "corpus": {"trained_on": ["a.py", "topics/b"]}}
    validation, test = toy_prompts(2, "validation"), toy_prompts(2)
    learned = trial.learned_documents(validation, test, facts)
    assert learned == {"validation-document-0", "source/a.py", "source/topics/b"}
    assert trial.learned_documents(validation, test, {"source": "models"}) == {"validation-document-0"}


def bench(folder, **section):
    """The arguments of a trial of tiny models: four test documents of two slices, and four of the reserve."""
    args = toy_bench(folder, "trial", {})
    short = {"gammas": [1, 2], "test_prompts": 4, "reserve_prompts": 2, "max_new_tokens": 6, "exactness_prompts": 1}
    gate = {"slice_documents": 2, "min_documents": 2}
    sections = {"trial": {**short, "threads": 1, **section}, "promotion": gate}
    args.params.write_text(yaml.safe_dump({"pairs": {"p": sections}}))
    prompts = [prompt for split in ("validation", "test", "reserve") for prompt in own_documents(4, split)]
    write_prompts(args.prompts / FILE, prompts)
    return args, ModelPair.load(target=str(args.pair_folder / "target"), draft=str(args.pair_folder / "draft"))


def quietly(call, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments)


def test_a_trial_beside_a_champion_is_at_the_settings_of_both(tmp_path):
    args, pair = bench(tmp_path, gammas=[1])

    def filtered(card):
        card["contract"]["serving_range"]["settings"] = [[0.6, 20.0, 0.9]]

    bundles = {
        CHALLENGER: random_bundle(tmp_path / "new", pair, temperatures=(0.0,)),
        CHAMPION: random_bundle(tmp_path / "old", pair, seed=1, change=filtered),
    }
    evidence = quietly(attempt, args, "hrad", bundles)
    assert evidence.champion == bundle_hash(bundles[CHAMPION]) and evidence.reference == CHAMPION
    assert "source/a.py" in evidence.trained_documents and evidence.documents_left == 4
    assert set(evidence.settings) == {"T=0", "T=0.6, top-k 20, top-p 0.9"} and set(evidence.slices) == {"code", "prose"}
    assert set(evidence.gains) == {"autoregressive", "chain-1", "champion"}
    bundles[CHAMPION] = settings_bundle(tmp_path / "lossy", pair, LOSSY)
    with pytest.raises(ValueError, match=r"the champion cannot be timed \(.*is lossy.*Roll it back first"):
        attempt(args, "hrad", bundles)


def test_looks_accumulate(tmp_path):
    """The second look times new prompts only; after a change of parameters nothing earlier counts."""
    args, pair = bench(tmp_path)
    bundles = {CHALLENGER: random_bundle(tmp_path / "new", pair, temperatures=(0.0,))}
    seconds = []
    for number in (1, 2):
        evidence = quietly(attempt, args, "hrad", bundles, number)
        rows = read_decodes(args.output / "toy-1c" / DECODES_FILE)
        seconds.append({(row["block"], row["arm"]): row["seconds"] for row in rows})
    assert (evidence.look, evidence.documents_left, len(evidence.documents)) == (2, 2, 6)
    first, both = seconds
    assert len(first) == 4 * 4 and len(both) == 6 * 4 and first.items() <= both.items()
    parameters = yaml.safe_load(args.params.read_text())
    parameters["pairs"]["p"]["trial"]["seed"] = 1
    args.params.write_text(yaml.safe_dump(parameters))
    quietly(attempt, args, "hrad", bundles, 2)
    rows = read_decodes(args.output / "toy-1c" / DECODES_FILE)
    assert len(rows) == 6 * 4 and not any(row["seconds"] in both.values() for row in rows)


GAMMAS = {"method": "speculative", "drafter": {"kind": "chain", "gamma": "{gamma}"}, "verifier": "block"}
ARMS = [
    ArmRow("autoregressive", "plain", {"method": "autoregressive"}, always=True),
    ArmRow("chain-{gamma}", "chain", GAMMAS, each={"gamma": [2, 4]}, always=True, choose=True),
    ArmRow("hrad", "learned", bundle="hrad", always=True),
]


def timed(row):
    """A row as stage ``measure`` writes it; at T=1 the bundle is slow."""
    slower = row["temperature"] > 0 and row["arm"] == "challenger"
    named = {"arm": "hrad"} if row["arm"] == "challenger" else {}
    named |= {"prompt": f"test-{'abcde'.index(row['prompt'])}"}
    return row | named | {"output": [1], "seconds": 10 / 7.1 if slower else row["seconds"]}


ROWS = [timed(row) for row in decodes(lambda arm, *where: RATES[arm]) if row["arm"] != "champion"]


def write_table(args, bundle, rows=ROWS, arms=ARMS, capped=False, parameters=None, **changes):
    """The measured table of this pair, and of the bundle beside static chains."""
    place = args.measured / "toy-1c"
    write_decodes(place / DECODES_FILE, rows)
    given = {"max_new_tokens": 6, "threads": 1, "arms": [dataclasses.asdict(arm) for arm in arms]} | (parameters or {})
    origin = {"hrad_bundle_sha256": bundle_hash(bundle), "pair_sha256": digest(read_facts(args.pair_folder))}
    origin |= {"serving": read_serving(args.latency / "toy-1c.json").to_record(), "parameters": given}
    write_json(place / PROVENANCE, origin | changes)
    write_json(place / FINDINGS, {"capped": capped})


@pytest.fixture
def table(tmp_path):
    """A trial's arguments, with the place of a measured table, and a bundle that was captured at T=0."""
    args, pair = bench(tmp_path, gammas=[2, 4])
    args.measured = tmp_path / "measured"
    return args, random_bundle(tmp_path / "hrad", pair, temperatures=(0.0,), change=measured)


def test_a_bundle_that_the_measured_table_has_is_not_timed_again(table, monkeypatch):
    args, bundle = table
    write_table(args, bundle)
    monkeypatch.setattr(one_look, "Harness", None)
    evidence = quietly(attempt, args, "hrad", {CHALLENGER: bundle})
    assert evidence.gains["chain-4"].gain == pytest.approx(0.2, abs=0.001) and evidence.documents == tuple("abcd")
    assert set(evidence.settings) == {"T=0"} and set(evidence.gains) == {"autoregressive", "chain-2", "chain-4"}
    assert evidence.origin["capped"] is False and evidence.origin["measured"].endswith("toy-1c")
    bounds = load_plan("p", args.params)[1]
    assert "gain" not in {check.name for check in judge(evidence, bounds).checks}
    write_table(args, bundle, capped=True)
    cut = judge(quietly(attempt, args, "hrad", {CHALLENGER: bundle}), bounds)
    assert [(check.name, check.found) for check in cut.checks if not check.passed] == [
        ("gain", "out of time (max_minutes)")
    ]


def without(**where):
    """The table's rows but for those."""
    return [row for row in ROWS if not where.items() <= row.items()]


def replaced(place, **changes):
    """The table of arms with another row."""
    return [dataclasses.replace(arm, **changes) if number == place else arm for number, arm in enumerate(ARMS)]


@pytest.mark.parametrize(
    "changes",
    [
        {"hrad_bundle_sha256": "another"},
        {"pair_sha256": "another"},
        {"parameters": {"max_new_tokens": 7}},
        {"arms": replaced(2, always=False)},
        {"arms": replaced(2, options={"overlap": "none"})},
        {"arms": replaced(2, name="head")},
        {"arms": replaced(1, decoder=GAMMAS | {"verifier": "tokenwise"})},
        {"arms": replaced(1, each={"gamma": [2, 3]})},
        {"rows": without(arm="chain-4", temperature=0.0)},
        {"rows": without(arm="hrad", temperature=0.0)},
        {"rows": without(prompt="test-1")},  # as many prompts as the look has, and another one
    ],
)
def test_another_arm_or_less_than_the_look_asks_is_timed(table, changes):
    """The look has four prompts. By the bundle's hash alone, most of these would pass for its trial."""
    args, bundle = table
    config, _ = load_plan("p", args.params)
    look = trial.Look.of(1, args.prompts, config)
    write_table(args, bundle)
    rows, _, _ = one_look._measured(args, config, bundle, "hrad", look)
    assert {row["arm"] for row in rows} == {"autoregressive", "chain-2", "chain-4", "hrad"} and len(rows) == 4 * 4
    assert {row["prompt"] for row in rows} == {prompt.id for prompt in look.prompts}, "and not of the fifth"
    write_table(args, bundle, **changes)
    assert one_look._measured(args, config, bundle, "hrad", look) is None


def test_replay_is_asked_for_the_arms_that_decodes_were_read_of(table, monkeypatch):
    """An arm that was not timed on every prompt may be the same decoder."""
    args, bundle = table
    config, _ = load_plan("p", args.params)
    look = trial.Look.of(1, args.prompts, config)
    write_table(args, bundle, arms=[ArmRow("plain again", "plain", {"method": "autoregressive"}), *ARMS])
    monkeypatch.setattr(one_look.Measured, "foreseen", lambda known, some: [row.name for row in known.arms])
    assert one_look._measured(args, config, bundle, "hrad", look)[1] == ["autoregressive", "chain-2", "chain-4", "hrad"]


def test_every_setting_that_a_bundle_was_captured_at_must_have_been_timed(table, tmp_path):
    args, _ = table
    pair = ModelPair.load(target=str(args.pair_folder / "target"), draft=str(args.pair_folder / "draft"))
    both = random_bundle(tmp_path / "both" / "hrad", pair, temperatures=(0.0, 1.0))
    config, _ = load_plan("p", args.params)
    look = trial.Look.of(1, args.prompts, config)
    write_table(args, both)
    assert {row["temperature"] for row in one_look._measured(args, config, both, "hrad", look)[0]} == {0.0, 1.0}
    for kept in ({"temperature": 1.0}, {"arm": "hrad", "temperature": 1.0}):
        write_table(args, both, without(**kept))
        assert one_look._measured(args, config, both, "hrad", look) is None


def test_earlier_decodes_are_of_the_same_machine_libraries_and_arms(tmp_path):
    inputs = {"parameters": {"seed": 0}, "challenger_sha256": "a", "prompts_sha256": "x"}
    place = SimpleNamespace(folder=tmp_path, inputs=inputs, device={"slug": "toy-1c"})
    write_decodes(tmp_path / DECODES_FILE, ROWS)
    write_rounds(tmp_path / ROUNDS_FILE, [])
    origin = inputs | {"versions": versions(), "device": {"slug": "toy-1c"}}

    def kept(**changes):
        write_json(tmp_path / PROVENANCE, origin | changes)
        return len(one_look._earlier(place)[0])

    assert kept() == kept(prompts_sha256="y") == len(ROWS)
    others = {
        "versions": {},
        "device": {"slug": "h100"},
        "champion_sha256": "b",
        "challenger_sha256": "b",
        "capped": True,
    }
    assert [kept(**{name: value}) for name, value in others.items()] == [0] * 5


def test_texts_of_documents_that_were_trained_on_are_no_evidence():
    """Where they were timed, the gate says so."""
    replayed = Replayed([{"document": "seen"}, {"document": "new"}], [], None)
    with pytest.raises(ValueError, match=r"trained on \(seen\)"):
        one_look._require_unlearned(replayed, [{"document": "new"}], {"seen", "other"})
    one_look._require_unlearned(replayed, [{"document": "seen"}], {"seen"})


def test_what_was_timed_outlives_a_failure_behind_it(tmp_path, monkeypatch):
    """And a trial on one document has a verdict."""
    args, pair = bench(tmp_path, gammas=[1])
    prompts = [prompt for split in ("validation", "test", "reserve") for prompt in own_documents(4, split)]
    write_prompts(args.prompts / FILE, [Prompt(**(vars(one) | {"document": one.split})) for one in prompts])
    bundles = {CHALLENGER: random_bundle(tmp_path / "new", pair, temperatures=(0.0,), change=measured)}
    closed = []
    with monkeypatch.context() as patched:
        patched.setattr(one_look, "evidence_of", None)
        patched.setattr(Decoder, "close", lambda decoder: closed.append(decoder))
        with pytest.raises(TypeError):
            quietly(attempt, args, "hrad", bundles)
    assert len(closed) >= 3, "every arm is closed"
    log = args.output / "toy-1c" / "partial.jsonl"
    seconds = [row["seconds"] for row in read_decodes(args.output / "toy-1c" / DECODES_FILE)]
    assert log.is_file() and len(seconds) == 4 * 3
    evidence = quietly(attempt, args, "hrad", bundles)
    assert [row["seconds"] for row in read_decodes(args.output / "toy-1c" / DECODES_FILE)] == seconds
    assert not log.is_file() and evidence.documents == ("test",)
    assert evidence.few_rivals == ("autoregressive", "chain-1") and evidence.few_settings == ("T=0",)
    verdict = judge(evidence, load_plan("p", args.params)[1])
    assert verdict.outcome == "inconclusive" and verdict.smallest_gain is None


LOSSY = {"method": "speculative", "verifier": "hsd_as_published", "lossy": True}
IN_TURN = {"method": "branch_parallel", "overlap": "none"}
OVERLAP_AUTO = {"method": "branch_parallel", "overlap": "auto"}


@pytest.mark.parametrize(
    ("decoder", "problem"),
    [
        (LOSSY, "is lossy: its output need not follow the target's law. Export it without lossy"),
        (IN_TURN, "drafts and verifies in turn .*a virtual clock's.* Export it with overlap 'auto'"),
        (OVERLAP_AUTO, ".*a virtual clock's.* Its overlap 'auto' finds a single core here"),
    ],
)
def test_what_is_lossy_or_on_a_virtual_clock_is_not_tried(tried, tmp_path, monkeypatch, decoder, problem):
    pair, bundles = tried
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    alone = settings_bundle(tmp_path / "alone", pair, decoder)
    assert re.search("its decoder " + problem, candidate.problem_of(alone, pair))
    routed = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], decoder)
    assert re.search(r"route 2 \(T=1\) " + problem, candidate.problem_of(routed, pair))
    assert candidate.problem_of(bundles["challenger"], pair) is None


def test_every_route_must_be_exact(tried, tmp_path, monkeypatch):
    """The greedy route is right; the route for temperature 1 says something else."""
    pair, bundles = tried
    routed = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], {"method": "autoregressive"})
    assert candidate.exact(pair, routed, [[1, 2, 3]], 8) == {
        "route 1 (T=0), greedy text 1, float32": True,
        "route 2 (T=1), greedy text 1, float32": True,
    }
    arm_of = candidate.decoder_arm

    def broken(decoder, budget):
        right = arm_of(decoder, budget)
        learned = decoder.controller.kind == "hrad"
        return right if learned else lambda prompt, settings, seed: Run([0, 1, 2], None)

    monkeypatch.setattr(candidate, "decoder_arm", broken)
    assert not candidate.exact(pair, routed, [[1, 2, 3]], 8)["route 2 (T=1), greedy text 1, float32"]


def test_the_stage_leaves_evidence_that_promote_reads(tmp_path):
    args, pair = bench(tmp_path)
    parameters = yaml.safe_load(args.params.read_text())
    parameters["pairs"]["p"]["promotion"] |= {"margin": 9.0, "promised": 10.0, "guardrail": 9.0}
    args.params.write_text(yaml.safe_dump(parameters))
    args.bundle = random_bundle(tmp_path / "hrad", pair, temperatures=(0.0,), change=measured)
    quietly(trial_stage.run, args)
    record = json.loads((args.output / "toy-1c" / VERDICT).read_text())
    failed = {check["name"] for check in record["checks"] if not check["passed"]}
    assert record["verdict"] != "passed" and failed == {f"gain over {name}" for name in record["evidence"]["gains"]}
    evidence = read_evidence(args.output / "toy-1c" / VERDICT)
    assert (evidence.predictor, evidence.bundle_sha256, evidence.look) == ("hrad", bundle_hash(args.bundle), 1)
    timed = read_decodes(args.output / "toy-1c" / DECODES_FILE)
    assert {row["arm"] for row in timed} == {"challenger", "chain-1", "chain-2", "autoregressive"}


def test_a_decoder_of_other_text_is_not_exact(tried, monkeypatch):
    pair, bundles = tried
    wrong = lambda decoder, budget: lambda prompt, settings, seed: Run([0, 1, 2], None)  # noqa: E731
    monkeypatch.setattr(candidate, "decoder_arm", wrong)
    assert candidate.exact(pair, bundles["challenger"], [[1, 2, 3]], 8) == {"greedy text 1, float32": False}


def test_looks_are_the_shares_that_the_prompts_make(tmp_path):
    path = tmp_path / "params.yaml"

    def plan(**sections):
        path.write_text(yaml.safe_dump({"pairs": {"p": {"trial": {}, "promotion": {}} | sections}}))
        return load_plan("p", path)

    assert plan() == (TrialConfig(), Bounds())
    assert plan(trial={"test_prompts": 48, "reserve_prompts": 24})[1].looks == (0.5, 0.75, 1.0)
    assert plan(promotion={"looks": [0.667, 1.0]})[0].shares(2) == [60 / 90, 1.0]
    problem = r"promotion.looks are \[0.5, 0.75, 1.0\], and trial.test_prompts 48 .* make \[0.444, 0.722, 1.0\]"
    with pytest.raises(ValueError, match=problem):
        plan(trial={"test_prompts": 48})


def test_bad_parameters_are_named():
    wrong = {"gammas": (), "exactness_prompts": 0, "test_prompts": 0, "reserve_prompts": 0, "max_new_tokens": 1}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            TrialConfig(**{name: value})
