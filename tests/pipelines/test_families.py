"""Every family through the whole pipeline: a tiny random pair of its real architecture, from its folders to the report; and a
target without a draft."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from pipelines.cli import main
from pipelines.measuring.tables import read_decodes
from pipelines.outputs import MARKER, NOT_APPLICABLE
from runtime import ModelPair, load_decoder
from tests.families import COMPACT, FAMILIES, WINDOWED, family_model
from tests.pipelines.conftest import TEXT
from tests.pipelines.whole_pipeline import BUNDLES, run_all, write_parameters

ALWAYS = ("gemma3",)  # by every `make test`; the pairs of other tests are Llamas
PROMPT = [5, 40, 7, 99, 5, 40]
NOISE = {"target": 0.0, "draft": 0.06}


def one(path: Path, pattern: str) -> dict:
    """The one JSON file that matches."""
    (found,) = path.glob(pattern)
    return json.loads(found.read_text())


@pytest.fixture
def folder(workspace, tmp_path) -> Path:
    """A folder to work in, with prompts and a tracking database."""
    texts = [TEXT[start : start + 30] * 9 for start in range(0, 12_000, 200)]
    Path("prompts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return tmp_path


def run_pair(family: str, tokenizer, *names: str, **changes) -> dict:
    """The whole pipeline on a random pair of these models; its report, in which greedy texts are Hugging Face's."""
    for name in names:
        family_model(family, noise=NOISE[name], vocabulary=300, **changes).save_pretrained(name)
        tokenizer.save_pretrained(name)
    write_parameters("p", **{name: Path(name).resolve() for name in names})
    run_all("p")
    exactness = one(Path("data/p"), "measured/*/findings.json")["exactness"]
    assert len(exactness) > 1 and all(row["exact_float32"] for row in exactness), "Hugging Face's greedy texts"
    return one(Path("data/p"), "reports/*/report.json")


def assert_greedy(pair: ModelPair, *bundles: str) -> None:
    """Texts of the bundles' decoders are Hugging Face's."""
    expected = pair.target.model.generate(torch.tensor([PROMPT]), max_new_tokens=16, do_sample=False, eos_token_id=None)
    for bundle in bundles:
        decoded = load_decoder(Path("data/p", *(["bundles"] if bundle != "auto" else []), bundle), pair).generate(
            PROMPT, max_new_tokens=16, temperature=0.0
        )
        assert decoded.tokens == expected[0, len(PROMPT) :].tolist(), bundle


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.families) for name in FAMILIES]
)
def test_a_pair_goes_from_its_folders_to_the_report(family, tokenizer, folder):
    wider = {"sliding_window": 96} if family in WINDOWED else {}  # no stage gives it more
    report = run_pair(family, tokenizer, "target", "draft", **wider)
    data = folder / "data" / "p"
    assert report["pair"] == "p" and {"speed", "replay", "latency", "fitted", "stopping"} <= set(report["sections"])
    assert {path.parent.parent.name for path in data.glob("trials/*/*/verdict.json")} == {"auto"}
    assert len(one(data, "measured/*/findings.json")["exactness"]) > len(BUNDLES)
    pair = ModelPair.load(target="target", draft="draft", dtype="float32", tokenizer="target", whole=True)
    assert (pair.target.forward == "packed") == (family in COMPACT)
    assert_greedy(pair, *BUNDLES, "auto")


def test_a_target_without_a_draft_goes_from_its_folder_to_the_report(tokenizer, folder, capsys):
    report = run_pair("llama", tokenizer, "target")
    data = folder / "data" / "p"
    said = {line.partition(": ")[0] for line in capsys.readouterr().out.splitlines() if line.endswith(NOT_APPLICABLE)}
    folders = {str(path.parent.relative_to(folder)) for path in data.rglob(MARKER)}
    fits = {f"data/p/fit/{name}.json" for name in BUNDLES if name != "lookahead"}
    labels = {f"data/p/labels/{kind}.{kept}" for kind in ("chains", "tokens", "trees") for kept in ("parquet", "json")}
    assert said == folders | fits | labels
    assert folders >= {"data/p/traces/texts", "data/p/replay"}
    assert all(json.loads(Path(one).read_text())["reason"] == NOT_APPLICABLE for one in fits)
    assert all(pq.read_table(one).num_rows == 0 for one in labels if one.endswith("parquet"))

    timed = {"autoregressive", "hf_generate", "lookup-1", "lookahead"}
    decodes = read_decodes(next(data.glob("measured/*/decodes.parquet")))
    assert {row["arm"] for row in decodes} == timed
    tables = report["sections"]["speed"]["tables"]
    assert {row["arm"] for row in tables[0]["rows"]} >= {"plain decoding", "lookahead", "lookup-1"}
    assert {"speed", "latency", "self_drafting", "release"} <= set(report["sections"])
    assert not {"replay", "fitted", "stopping", "branches", "rules"} & set(report["sections"])
    for choice in json.loads(next(data.glob("tuning/*/choices.json")).read_text()):
        traced = {"lookahead"} if choice["setting"] == "T=1" else set()  # as traces.guesses says
        assert {one["name"] for one in choice["candidates"]} == {"autoregressive", "lookup-1", *traced}
    (verdict,) = data.glob("trials/*/*/verdict.json")
    checks = {check["name"]: check for check in json.loads(verdict.read_text())["checks"]}
    assert checks["exactness"]["passed"] and not any(name == "gain" for name in checks), "no rival is unknown"
    main(["register"])
    lines = capsys.readouterr().out.splitlines()
    assert {line.rpartition("/")[2].partition(":")[0] for line in lines} == {"auto", "lookahead"}
    pair = ModelPair.load(target="target", dtype="float32", tokenizer="target", whole=True)
    assert_greedy(pair, "lookahead", "auto")
