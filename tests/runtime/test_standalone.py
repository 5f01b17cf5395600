"""An exported bundle decodes the same text in another process that loads nothing of the training side.

`make test-runtime` runs this where nothing but the runtime's dependencies is installed.
"""

import dataclasses
import json
import subprocess
import sys

from predictors.bundle import bundle_hash
from predictors.monitoring import AlarmLevel, Reference, RequestCounts
from runtime import ModelPair, Randomness, load_decoder
from tests.bundles import random_bundle
from tests.toys import tiny_llama

SCRIPT = """
import json, sys
import torch
from runtime import ModelPair, Randomness, load_decoder
torch.set_num_threads(1)
folder = sys.argv[1]
pair = ModelPair.load(f"{folder}/target", f"{folder}/draft", dtype="float32", device="cpu")
decoder = load_decoder(f"{folder}/bundle", pair)
texts = [decoder.generate([1, 2, 3], max_new_tokens=24, temperature=t, randomness=Randomness(3)).tokens for t in (0.0, 1.0)]
ours = {"pipelines", "trace_collection", "predictors.training", "lightning", "mlflow", "dvc", "imblearn", "datasets"}
assert not ours & set(sys.modules), ours & set(sys.modules)
print(json.dumps(texts))
"""


def test_same_text_without_the_training_libraries(tmp_path):
    tiny_llama(seed=0).save_pretrained(tmp_path / "target")
    tiny_llama(seed=0, layers=1).save_pretrained(tmp_path / "draft")
    pair = ModelPair.load(tmp_path / "target", tmp_path / "draft", dtype="float32", device="cpu")
    random_bundle(tmp_path / "bundle", pair, gamma=3)
    decoder = load_decoder(tmp_path / "bundle", pair)
    here = [
        decoder.generate([1, 2, 3], max_new_tokens=24, temperature=temperature, randomness=Randomness(3)).tokens
        for temperature in (0.0, 1.0)
    ]
    result = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == here


OTHERS = (
    "scipy",
    "pyarrow",
    "mlflow",
    "pandas",
    "sklearn",
    "lightning",
    "imblearn",
    "datasets",
    "dvc",
    "matplotlib",
    "yaml",
)
COMMAND = (
    f"import sys; sys.modules.update(dict.fromkeys({OTHERS}, None)); from pipelines.cli import main; main(sys.argv[1:])"
)


def test_a_host_that_only_serves_fetches_a_folder_and_watches_for_drift(tmp_path):
    pair = ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))
    reference = Reference(24.0, {"accepted": AlarmLevel(2.0, 0.05, 20.0, 40)})
    entry = {"settings": {"T=0": dataclasses.asdict(reference)}, "missing": None}
    bundle = random_bundle(tmp_path / "bundle", pair, change=lambda card: card.update(reference=entry))
    decoder = load_decoder(bundle, pair, monitor=tmp_path / "records")
    decoder.generate([1, 2, 3], max_new_tokens=24)
    counted = dataclasses.asdict(RequestCounts(24, 3, 24)) | {"bundle": bundle_hash(bundle), "setting": "T=0"}
    with (tmp_path / "records").open("a") as lines:
        for number in range(20):
            lines.write(json.dumps(counted | {"rounds": 8, "accepted": 4 + number % 3}) + "\n")
    watch = ["drift", "--bundle", str(tmp_path / "served"), "--records", str(tmp_path / "records")]
    for argv, code in (
        (["fetch", str(bundle), str(tmp_path / "served")], 0),
        (watch, 3),
        (["status", "--pair", "p"], 1),
    ):
        result = subprocess.run([sys.executable, "-c", COMMAND, *argv], capture_output=True, text=True, cwd=tmp_path)
        assert result.returncode == code and "Traceback" not in result.stderr, result.stderr
    assert bundle_hash(tmp_path / "served") == bundle_hash(bundle)
