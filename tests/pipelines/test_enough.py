"""How many documents are enough: subsets of what is learned from, the rule on hand-made curves, the stage on synthetic traces."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from pipelines import fit
from pipelines.cli import main
from pipelines.outputs import write_json
from pipelines.parameters import load_parameters
from pipelines.studies.enough.learners import BRIER, MACRO_AUC, Learner, metrics, seeded, state_variants
from pipelines.studies.enough.subsets import Lessons
from pipelines.studies.enough.summary import cheapest, enough, loss, page, summarised, verdict
from pipelines.studies.learning import STOP_MODELS, LearningConfig
from predictors.contract import CaptureContract, Identity, ModelIdentity, ServingRange
from predictors.schema import PLACE_COLUMNS, TEXT_COLUMNS, TEXT_TRACES_VERSION
from predictors.training.labelling.chains import KIND as CHAINS
from predictors.training.labelling.table import Labels, read_labels, write_labels
from predictors.training.labelling.tokens import KIND as TOKENS
from predictors.training.labelling.trees import TreeLabelConfig, label
from predictors.training.predictor import Fitted, Materials
from predictors.training.root_table import RootTable
from predictors.training.text_table import TextManifest, TextTable
from predictors.training.trees.predictor import TreePredictor
from predictors.training.trees.training import SelectorConfig
from tests.predictors.affine_profile import PROFILE
from tests.predictors_training.synthetic_roots import write_roots
from trace_collection.shards import columns_of, shard_name, trace_schema, write_manifest, write_shard

LAYERS, HIDDEN, EMBEDDING = (2, 3), 4, 3
SHARES, SEEDS = (0.25, 0.5, 1.0), 3
SPLITS = {"train": 40, "validation": 4, "test": 4}  # documents, of three rows each


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    """Texts of random states whose labels are all rows but every fourth, and synthetic trees with theirs."""
    folder = tmp_path_factory.mktemp("materials")
    write_texts(folder / "traces" / "texts")
    write_roots(folder / "traces" / "trees")
    (folder / "labels").mkdir()
    texts, trees = TextTable.read(folder / "traces/texts"), RootTable.read(folder / "traces/trees")
    rows = np.flatnonzero(np.arange(len(texts)) % 4)
    for kind in (CHAINS, TOKENS):
        labels = Labels(kind, pa.table({"row": rows}), texts.manifest.content_hash, {}, {})
        write_labels(labels, folder / "labels" / f"{kind}.parquet")
    write_labels(label(trees, TreeLabelConfig()), folder / "labels" / "trees.parquet")
    return Materials.of(folder / "traces", folder / "labels", PROFILE)


def write_texts(folder):
    """Text traces of which only places and root states say anything."""
    random = np.random.default_rng(0)
    identity = Identity(ModelIdentity("t", (1.0,)), ModelIdentity("d", (2.0,)), "tokenizer", None, LAYERS)
    contract = CaptureContract(identity, ServingRange("float32", ((0.0, 0.0, 1.0),), 8, 90), {}).to_json()
    spec = {"draft_layers": [1], "draft_hidden_size": 2, "top": 2}
    facts = {"schema_version": TEXT_TRACES_VERSION, "fingerprint": "f", "contract": contract, "gamma_max": 3}
    facts |= {"candidates": 2, "max_new_tokens": 8, "eos_tokens": [], "feature_layers": LAYERS}
    facts |= {"hidden_size": HIDDEN, "embedding_size": EMBEDDING, "stop_spec": spec, "parameters": {}}
    sizes = {"root": len(LAYERS) * HIDDEN + EMBEDDING, "slots": 3, "tops": 6, "states": 6, "candidates": 2}
    schema = trace_schema(TEXT_COLUMNS, sizes, TEXT_TRACES_VERSION, "f", contract)
    rows = []
    for split, documents in SPLITS.items():
        for number in range(3 * documents):
            row = {name: _nothing(schema.field(name).type) for name in TEXT_COLUMNS}
            document = f"{split}{number // 3}"
            row |= dict(zip(PLACE_COLUMNS, (document, document, "code", split, 0.0, 0, 1.0, 1), strict=True))
            rows.append(row | {"root": random.normal(size=sizes["root"]).astype(np.float16)})
    folder.mkdir(parents=True)
    write_shard(folder / shard_name(0), [columns_of(rows)], schema)
    write_manifest(folder, [shard_name(0)], facts)


def _nothing(kind):
    if pa.types.is_fixed_size_list(kind):
        return np.zeros(kind.list_size, dtype=kind.value_type.to_pandas_dtype())
    return "" if kind == pa.string() else kind.to_pandas_dtype()(0)


@dataclass(frozen=True)
class Training:
    reduced_size: int | None = 6
    seed: int = 0


@dataclass(frozen=True)
class ToyHead:
    """Knows as much as there are training rows, minus what its states say; worth its seed."""

    feature_set: str = "extended"
    training: Training = Training()

    def fit(self, name, materials, logger=None):
        table = TextTable.read(materials.texts)
        labels = read_labels(materials.labels / f"{CHAINS}.parquet", CHAINS, table.manifest.content_hash)
        taught = int((table.column("split") == "train")[labels.table.column("row").to_numpy()].sum())
        size = table.column("root").shape[1]
        assert size == table.manifest.sizes()["root"] and (self.training.reduced_size or 0) <= size
        part = {
            "metrics": {"head": {"macro_auc": taught / 100 - 1 / (1 + size), "ece": 0.1}},
            "policies": {"head": {"gain": {"value": float(self.training.seed)}}},
        }
        return Fitted({}, {}, {"parts": {"T=0": part}}, {}, "")


@dataclass(frozen=True)
class ToyStop:
    inputs: str = "law"
    seed: int = 0

    def fit(self, name, materials, logger=None):
        part = {"policies": {"model": {"gain": {"value": 0.0}}}}
        known = {"auroc": 0.6 if self.inputs == "law" else 0.7, "brier": 0.2 + self.seed}
        return Fitted({}, {}, {"tokens": {"all": known}, "parts": {"T=0": part}}, {}, "")


# ---- subsets


def test_smaller_sets_are_whole_documents_within_larger_ones(materials):
    lessons = Lessons("head", materials)
    for seed in range(3):
        drawn = [set(lessons.documents(share, seed)) for share in (0.1, 0.25, 0.5, 1.0)]
        assert drawn[0] < drawn[1] < drawn[2] < drawn[3] and [len(names) for names in drawn] == [4, 10, 20, 40]
        assert all(name.startswith("train") for name in drawn[3]), "no other document is ever learned from"
    assert set(lessons.documents(0.5, 0)) != set(lessons.documents(0.5, 1))
    with pytest.raises(ValueError, match="share of documents"):
        lessons.documents(0.0, 0)


@pytest.mark.parametrize("family", ["head", "stop", "tree"])
def test_only_labels_of_other_training_documents_are_left_out(materials, family, tmp_path):
    lessons = Lessons(family, materials)
    documents = lessons.documents(0.25, 0)
    less = Lessons(family, lessons.of_documents(documents, tmp_path))
    of_row, split = (lessons.table.column(name) for name in ("document", "split"))
    rows, whole = (made.labels.table.column("row").to_numpy() for made in (less, lessons))
    expected = [row for row in whole if split[row] != "train" or of_row[row] in documents]
    assert rows.tolist() == expected and 0 < len(rows) < len(whole)
    assert lessons.training_rows(documents) == (split[rows] == "train").sum()
    assert less.labels.traces_sha256 == lessons.labels.traces_sha256 and less.materials.texts == materials.texts


@pytest.mark.parametrize(
    ("layers", "embedding", "columns"),
    [
        ((3,), True, [4, 5, 6, 7, 8, 9, 10]),
        ((2,), False, [0, 1, 2, 3]),
        ((), True, [8, 9, 10]),
        ((2, 3), True, list(range(11))),
    ],
)
def test_fewer_states_are_the_same_columns(materials, layers, embedding, columns, tmp_path):
    lessons = Lessons("head", materials)
    less = Lessons("head", lessons.of_states(layers, embedding, tmp_path))
    assert np.array_equal(less.table.column("root"), lessons.table.column("root")[:, columns])
    assert less.table.manifest.feature_layers == layers
    assert less.table.manifest.embedding_size == EMBEDDING * embedding
    assert less.labels.table == lessons.labels.table and less.table.column("document").tolist() == (
        lessons.table.column("document").tolist()
    )
    assert isinstance(less.table.manifest, TextManifest)


def test_no_state_at_all_is_a_number_that_says_nothing(materials, tmp_path):
    less = Lessons("head", Lessons("head", materials).of_states((), False, tmp_path))
    assert less.table.column("root").shape == (len(less.table), 1) and not less.table.column("root").any()


def test_states_from_nothing_to_everything():
    made = list(state_variants((7, 8, 9, 10), scalars=True))
    names = [
        "scalars alone",
        "embedding",
        "layer 7",
        "layer 8",
        "layer 9",
        "last layer",
        "last 2 layers",
        "last 4 layers",
    ]
    assert [name for name, _, _ in made] == names
    assert [layers for _, layers, _ in made] == [(), (), (7,), (8,), (9,), (10,), (9, 10), (7, 8, 9, 10)]
    assert [embedding for _, _, embedding in made] == [False] + [True] * 7
    assert next(state_variants((7,), scalars=False))[0] == "embedding"


# ---- learners


def test_a_head_is_fitted_with_what_each_variant_leaves(materials):
    learner = Learner("toy", "head", ToyHead(), materials)
    fits = list(learner.of_features(seed=2))
    whole = 2 * (2 * HIDDEN + EMBEDDING)
    one = 2 * (HIDDEN + EMBEDDING)
    assert [made.size["bytes"] - 4 * 6 for made in fits] == [0, 2 * EMBEDDING, one, one, whole], "six scalars"
    areas = [made.rows()[0] for made in fits]
    assert [row["value"] for row in areas] == [0.9 - 1 / (1 + size) for size in (1, 3, 7, 7, 11)]
    assert {row["metric"] for row in areas} == {f"{MACRO_AUC} T=0"} and areas[0]["controller"] == "toy"
    assert fits[0].rows()[2]["value"] == 2, "the seed trains the network"


def test_a_curve_is_fitted_on_the_documents_that_its_seed_draws(materials):
    learner = Learner("toy", "head", ToyHead(), materials)
    made = learner.of_documents(0.25, seed=0)
    row = made.rows()[0]
    assert row["rows"] == learner.lessons.training_rows(learner.lessons.documents(0.25, 0)) and row["documents"] == 10
    assert row["value"] == pytest.approx(row["rows"] / 100 - 1 / 12)
    assert (row["variant"], row["study"], made.key) == ("0.25", "documents", "documents/toy/0.25/0")


def test_a_selector_is_fitted_with_states_and_without(materials):
    learner = Learner("tree", "tree", TreePredictor("block", training=SelectorConfig(seed=3)), materials)
    alone, states = learner.of_features(seed=2)
    assert (alone.variant, states.variant) == ("scalars alone", "states")
    assert states.size["bytes"] - alone.size["bytes"] == 2 * learner.lessons.table.manifest.selection_spec.state_size
    assert seeded(learner.predictor, 2).training.seed == 5 and seeded(ToyStop(seed=3), 2).seed == 5


def test_a_metric_that_is_undefined_is_told():
    with pytest.raises(ValueError, match="Collect more test prompts"):
        metrics("tree", {"parts": {"all": {"selector": {"gain": {"value": None}}}}})


# ---- what is enough


def losses_of(means, metric=MACRO_AUC, spread=0.002):
    random = np.random.default_rng(0)
    made = [mean + spread * random.normal(size=4) for mean in means]
    return [{metric: loss(one, made[-1], metric)} for one in made]


def test_a_loss_is_students_interval_over_seeds_paired():
    """Seed by seed: unpaired, seeds that differ by 0.1 would hide a loss of 0.02."""
    whole = np.array([0.7, 0.8, 0.75, 0.85])
    lost = loss(whole - [0.02, 0.03, 0.02, 0.01], whole, MACRO_AUC)
    error = np.std([0.02, 0.03, 0.02, 0.01], ddof=1) / 2
    assert lost["value"] == pytest.approx(0.02) and lost["low"] == pytest.approx(0.02 - 3.182446 * error)
    assert loss(whole - 0.02, whole[::-1], MACRO_AUC)["low"] < 0 < lost["low"]
    assert loss([0.3, 0.3], [0.2, 0.2], BRIER)["value"] == pytest.approx(0.1), "of errors less is better"
    assert loss([0.3], [0.2], BRIER)["low"] is None


def test_a_saturated_curve_needs_less_than_all_and_a_rising_one_does_not():
    assert enough(losses_of([0.60, 0.70, 0.75, 0.75])) == 2
    assert enough(losses_of([0.60, 0.65, 0.70, 0.75])) == 3
    assert enough(losses_of([0.75, 0.75, 0.75, 0.75])) == 0
    assert enough(losses_of([0.40, 0.30, 0.25, 0.25], BRIER)) == 2
    assert enough(losses_of([0.75, 0.60, 0.75, 0.75])) == 2, "not where a larger share is surely worse"


def test_the_cheapest_that_is_not_surely_worse():
    worse, equal, better = ({"low": low, "value": low + 0.01, "high": 0.1} for low in (0.01, -0.01, -0.05))
    points = [
        {"bytes": 1, "losses": {MACRO_AUC: equal, BRIER: worse}},
        {"bytes": 2, "losses": {MACRO_AUC: equal}},
        {"bytes": 2, "losses": {MACRO_AUC: better}},
        {"bytes": 4, "losses": {MACRO_AUC: {"low": 0.0, "value": 0.0, "high": 0.0}}},
    ]
    assert cheapest(points) == 2
    assert cheapest([points[0], points[3]]) == 1


def curve_of(means):
    random = np.random.default_rng(0)
    rows = [
        {"study": "documents", "controller": "paper", "variant": f"{share:g}", "seed": seed, "metric": MACRO_AUC}
        | {"documents": round(40 * share), "rows": round(960 * share), "value": mean + 0.001 * random.normal()}
        for seed in range(SEEDS)
        for share, mean in zip(SHARES, means, strict=True)
    ]
    return summarised(rows)["curves"]["paper"]


def test_what_is_collected_is_judged_by_the_curve():
    saturated, rising = (curve_of(means) for means in ([0.6, 0.7, 0.7], [0.6, 0.65, 0.7]))
    assert saturated["points"][saturated["enough"]]["share"] == 0.5
    assert verdict(saturated, 0.5) == "enough" and verdict(saturated, 0.25) == "too few for macro AUC"
    assert rising["points"][rising["enough"]]["share"] == 1.0 and verdict(rising, 0.5) == "too few for macro AUC"
    assert rising["points"][1]["surely_worse"] == [MACRO_AUC]
    assert [point["rows"] for point in rising["points"]] == [240, 480, 960]


# ---- stage

TREE = {"family": "tree", "rule": "block", "calibration": {"bootstrap_replicates": 20}}
TREE |= {
    "training": {"width": 4, "hidden_sizes": [8, 4], "epochs": 1},
    "candidates": [{"states": False}, {"states": True}],
}
MAIN = {
    "fit": {"hrad": {"family": "head"}, "state": {"family": "stop", "inputs": "before"}, "law": {"family": "stop"}}
    | {"delayed_tree-block": TREE},
    "traces": {"texts": {"prompts": [20, 4, 4]}, "trees": {"prompts": [15, 5, 5]}},
}
STUDY = {
    "traces": {"texts": {"prompts": [40, 4, 4]}, "trees": {"prompts": [60, 20, 30]}},
    "learning": {
        "predictors": ["hrad", "delayed_tree-block"],
        "features": ["hrad", "delayed_tree-block"],
        "alternatives": ["law", "state"],
        "shares": [0.5, 1.0],
        "seeds": 2,
    },
}


@pytest.fixture
def study(materials, tmp_path, monkeypatch):
    """Runs the stage in a folder of its own, with some parameters changed."""
    monkeypatch.chdir(tmp_path)
    toys, real = {"head": ToyHead, "stop": ToyStop}, fit.predictor_class
    monkeypatch.setattr(fit, "predictor_class", lambda family: toys.get(family) or real(family))
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": MAIN}}))
    write_json(Path("device.json"), {"slug": "toy", "cpu": "toy", "gpus": [], "bfloat16_flags": []})
    write_json(Path("latency/toy.json"), PROFILE.to_record())
    places = {
        "device": "device.json",
        "latency": "latency",
        "traces": materials.texts.parent,
        "labels": materials.labels,
    }
    named = [str(word) for name, place in places.items() for word in (f"--{name}", place)]

    def run(**changes):
        values = STUDY | {"learning": STUDY["learning"] | changes}
        Path("study.yaml").write_text(yaml.safe_dump({"pairs": {"p": values}}))
        main(["studies.learning", "--pair", "p", "--params", "study.yaml", *named, "out"])

    return run


def test_the_stage_on_synthetic_traces(study):
    study()
    summary = json.loads(Path("out/toy/enough.json").read_text())
    assert summary["present"] == {"hrad": 0.5, "law": 0.5, "state": 0.5, "delayed_tree-block": 0.25}
    assert [point["documents"] for point in summary["curves"]["delayed_tree-block"]["points"]] == [30, 60]
    assert set(summary["layers"]) == {"hrad", "delayed_tree-block", STOP_MODELS}
    assert [point["variant"] for point in summary["layers"][STOP_MODELS]["points"]] == ["law", "state"]
    whole = summary["curves"]["hrad"]["points"][-1]
    assert whole["losses"][f"{MACRO_AUC} T=0"] == {"value": 0.0, "low": 0.0, "high": 0.0} and not whole["surely_worse"]
    tables = {table.caption: {row[table.columns[0]]: row for row in table.rows} for table in page("p", summary).tables}
    assert set(tables["How many"]) == set(summary["curves"]) and set(tables["Which features"]) == set(summary["layers"])
    assert tables["hrad by features"]["scalars alone"]["bytes"] == 24
    assert tables["How many"]["delayed_tree-block"]["collected by default"] == "25.0%"
    point = summary["curves"]["hrad"]["points"][0]["metrics"][f"{MACRO_AUC} T=0"]
    cell = tables["hrad by share"]["50%"][f"{MACRO_AUC} T=0"]
    assert cell == {"value": point["value"], "low": point["least"], "high": point["most"]}
    assert Path("out/toy/enough.md").read_text().count("\n## ") == 2 + len(summary["curves"]) + len(summary["layers"])
    assert Path("out/toy/enough.png").stat().st_size > 5000
    assert not list(Path("out").rglob("*.jsonl")), "a finished study leaves no log"


def test_an_interrupted_study_goes_on(study, monkeypatch):
    fitted = []
    original = Learner.fitted

    def counted(self, *made):
        if len(fitted) == 5:
            raise KeyboardInterrupt
        fitted.append(self.name)
        return original(self, *made)

    monkeypatch.setattr(Learner, "fitted", counted)
    heads = {"predictors": ["hrad"], "features": ["hrad"]}
    with pytest.raises(SystemExit, match="interrupted"):
        study(**heads)
    monkeypatch.setattr(Learner, "fitted", lambda *made: fitted.append("new") or original(*made))
    study(**heads)
    assert len(fitted) == 2 * (2 + 5 + 2) and fitted.count("new") == len(fitted) - 5
    assert Path("out/toy/enough.json").is_file()


def test_shares_ascend_to_all():
    for shares in ((0.5, 0.25, 1.0), (0.5,), (0.0, 1.0), ()):
        with pytest.raises(ValueError, match="shares"):
            LearningConfig(("hrad",), shares=shares)


def test_the_products_own_study_names_predictors_that_it_fits():
    root = Path(__file__).parents[2]
    config = load_parameters(LearningConfig, "pystdlib", "learning", root / "pipelines/studies/params.yaml")
    named = {*config.predictors, *config.features, *config.alternatives}
    fitted = yaml.safe_load((root / "params.yaml").read_text())["pairs"]["pystdlib"]["fit"]
    families = {name: fitted[name]["family"] for name in named}
    assert set(families.values()) == {"head", "stop", "tree"}
    assert {families[name] for name in config.alternatives} == {"stop"}
    assert replace(config, seeds=1).seeds == 1
