"""What section ``heads`` says of two heads written by hand."""

import pytest

from pipelines.outputs import write_json
from pipelines.reporting.heads import calibration, section
from pipelines.reporting.inputs import Inputs
from tests.pipelines.hand_made_measured import MAIN_SPEED, decodes, head_record, write_measured


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    write_measured(folder / "measured" / "toy-1c", decodes(MAIN_SPEED))
    for name, target in (("hrad", "classes"), ("length", "length")):
        write_json(folder / "fit" / f"{name}.json", head_record(target))
    return Inputs(folder, "toy-1c")


@pytest.fixture(scope="module")
def made(inputs):
    return section(inputs)


def test_every_head_and_what_it_is_compared_with(made):
    (table,) = made.tables
    rows = {(row["predictor"], row["sampling"]): row for row in made.record()["tables"][0]["rows"]}
    assert len(rows) == 2 * (2 + 5), "two heads and five baselines at two settings"
    head = rows["H-RAD, hrad", "T=1"]
    assert head["macro AUC"] == pytest.approx({"value": 0.7, "low": 0.6, "high": 0.8})
    assert (head["accuracy"], head["macro F1"], head["ECE"], head["static γ"]) == (0.6, 0.5, 0.03, 3)
    assert head["tokens/s"] == pytest.approx(96) and head["over best static γ"]["value"] == pytest.approx(-0.04)
    perfect, confidence = rows["oracle", "T=0"], rows["draft confidence", "T=0"]
    assert perfect["tokens/s"] == pytest.approx(130) and perfect["accuracy"] is perfect["macro AUC"] is None
    assert confidence["tokens/s"] is confidence["static γ"] is None and confidence["ECE"] == 0.03
    assert [(row["predictor"], row["sampling"]) for row in table.rows if table.is_marked(row)] == [
        ("H-RAD, hrad", "T=0"),
        ("H-RAD, hrad", "T=1"),
    ]


def test_pictures_are_of_the_head_that_is_marked(made):
    assert [picture.name for picture in made.pictures] == ["reliability", "confusion"]
    reliability, confusion = (picture.figure.axes for picture in made.pictures)
    assert len(reliability) == len(confusion) == 2, "a panel for each setting"
    assert [line.get_xydata().tolist() for line in reliability[0].lines[1:]] == [[[0.45, 0.5]]] * 2
    assert confusion[0].texts[0].get_text().splitlines() == ["5", "56%"]  # of nine


def test_an_unknown_interval_leaves_the_value(inputs, tmp_path):
    record = head_record("classes")
    record["parts"]["T=0"]["metrics"]["head"] |= {"macro_auc_interval": {"value": 0.7, "low": None, "high": None}}
    write_json(tmp_path / "fit" / "hrad.json", record)
    other = Inputs(tmp_path, "toy-1c")
    vars(other)["measured"] = inputs.measured
    assert section(other).record()["tables"][0]["rows"][0]["macro AUC"] == 0.7


def test_without_heads_there_is_no_section(tmp_path):
    assert section(Inputs(tmp_path, "toy-1c")) is None


def test_the_registry_draws_a_heads_own_record():
    assert calibration(head_record("length")).keys() == {"reliability", "confusion"}
