"""The script for one GPU, rehearsed in small shapes on a CPU."""

import json
import subprocess
import sys

import pytest

from pipelines import gpu
from runtime import ModelPair
from tests.bundles import random_bundle, survival_bundle
from tests.toys import tiny_llama

ABSENT = "mlflow dvc datasets psutil pandas pyarrow scipy sklearn matplotlib lightning imblearn joblib"


def priced(card):
    """Its rules hold at any price."""
    for made in card["settings"]:
        made["elsewhere"] = [{"cost_ratio": 8.0, "rule": made["rule"], "static_length": 1}]


@pytest.fixture(scope="module")
def results(tokenizer, tmp_path_factory):
    """A rehearsal, inside one process, on a tiny pair and two of its bundles."""
    folder = tmp_path_factory.mktemp("gpu")
    for seed, (name, layers) in enumerate({"target": 2, "draft": 1}.items()):
        heads = {"num_attention_heads": 2, "max_position_embeddings": 32}
        tiny_llama(300, seed, hidden=16, layers=layers, **heads).save_pretrained(folder / "pair" / name)
        tokenizer.save_pretrained(folder / "pair" / name)
    pair = ModelPair.load(folder / "pair" / "target", folder / "pair" / "draft", dtype="float32")
    random_bundle(folder / "pair" / "bundles" / "hrad", pair)
    survival_bundle(folder / "pair" / "bundles" / "survival", pair, change=priced)
    given = ["--pair", str(folder / "pair"), "--toy", "--prompts", "1", "--new-tokens", "8"]
    gpu.main([str(folder / "out"), *given, "--inside", "--parts", "plain-1b", "pair-1b-10"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gpu.SECONDS, "plain-7b", 0.01)
        gpu.main([str(folder / "out"), *given, "--parts", "plain-7b"])
    (path,) = (folder / "out").glob("*.json")
    return json.loads(path.read_text())


def test_plain_decoding_is_held_against_the_bandwidth(results):
    part = results["plain-1b"]["compact"]
    assert 0 < part["share_of_bound"] < 1 and 0 <= part["idle"] < 1
    assert "joules_per_token" not in part, "nothing counts them here"


def test_every_arm_is_held_against_its_latency_model(results):
    part = results["pair-1b-10"]
    arms = {"plain", "chain-2", "chain-4", "chain-8", "tree", "survival"}
    arms |= {"hrad-specbranch-none", "specbranch-no-hrad-none"}
    for temperature in ("T=0", "T=1"):
        assert part[temperature].keys() == arms
        assert all(row["of_predicted"] > 0 for row in part[temperature].values())
    gaps = [gap for some in part["gaps_where_texts_part"].values() for gap in some]
    assert all(gap < 1e-4 for gap in gaps), "float32: near-ties alone"


def test_a_part_that_takes_too_long_is_cut_off_and_others_stay(results):
    assert results["plain-7b"]["code"].startswith("cut off") and "bandwidth" in results["plain-1b"]


def test_it_starts_with_what_a_gpu_image_has():
    code = f"import sys\nsys.modules |= dict.fromkeys({ABSENT!r}.split())\nimport pipelines.gpu"
    subprocess.run([sys.executable, "-c", code], check=True)
