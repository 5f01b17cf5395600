"""Every family through the whole pipeline: a tiny random pair of its real architecture, from its folders to the report."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from runtime import ModelPair, load_decoder
from tests.families import COMPACT, FAMILIES, WINDOWED, family_model
from tests.pipelines.whole_pipeline import BUNDLES, run_all, write_parameters

ALWAYS = ("gemma3",)  # by every `make test`; the built-in pair, which other tests run, is a Llama
PROMPT = [5, 40, 7, 99, 5, 40]


def one(path: Path, pattern: str) -> dict:
    """The one JSON file that matches."""
    (found,) = path.glob(pattern)
    return json.loads(found.read_text())


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.families) for name in FAMILIES]
)
def test_a_pair_goes_from_its_folders_to_the_report(
    family, tokenizer, few_documents, tmp_path, monkeypatch, template_db
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    shutil.copy(template_db, tmp_path / "mlflow.db")
    wider = {"sliding_window": 96} if family in WINDOWED else {}  # no stage gives it more
    for name, noise in (("target", 0.0), ("draft", 0.06)):
        family_model(family, noise=noise, vocabulary=300, **wider).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    texts = [document.text[200:230] * 9 for document in few_documents]
    Path("prompts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    write_parameters("p", tmp_path / "target", tmp_path / "draft")
    run_all("p")

    data = tmp_path / "data" / "p"
    report = one(data, "reports/*/report.json")
    assert report["pair"] == "p" and {"speed", "replay", "latency", "heads", "stopping"} <= set(report["sections"])
    assert {path.parent.parent.name for path in data.glob("trials/*/*/verdict.json")} == {"survival", "source", "auto"}
    exactness = one(data, "measured/*/findings.json")["exactness"]
    assert len(exactness) > len(BUNDLES) and all(one["exact_float32"] for one in exactness), (
        "Hugging Face's greedy texts"
    )
    pair = ModelPair.load(target="target", draft="draft", dtype="float32", tokenizer="target")
    assert (pair.target.forward == "compact") == (family in COMPACT)
    expected = pair.target.model.generate(torch.tensor([PROMPT]), max_new_tokens=16, do_sample=False, eos_token_id=None)
    for bundle in (*BUNDLES, "auto"):
        decoded = load_decoder(data / "bundles" / bundle, pair).generate(PROMPT, max_new_tokens=16, temperature=0.0)
        assert decoded.tokens == expected[0, len(PROMPT) :].tolist(), bundle
