"""An exported bundle decodes the same text in another process that loads nothing of the training side.

`make test-runtime` runs this where nothing but the runtime's dependencies is installed.
"""

import json
import subprocess
import sys

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
