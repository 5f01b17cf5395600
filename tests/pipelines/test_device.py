import json
import re
import subprocess
import sys
import time

import pytest

from pipelines import device
from pipelines.cli import main
from pipelines.device_file import read_device
from pipelines.measuring.bench import open_bench
from pipelines.promotion.plan import TrialConfig
from tests.pipelines.toy_bench import toy_bench


def test_two_runs_write_the_same_bytes(tmp_path):
    main(["device", str(tmp_path / "a.json")])
    main(["device", str(tmp_path / "b.json")])
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    record = json.loads((tmp_path / "a.json").read_text())
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", record["slug"])
    assert record["cores"] >= 1


def test_neither_torch_nor_much_time_is_needed(tmp_path):
    code = (
        "import sys; from pipelines.cli import main; "
        f"main(['device', {str(tmp_path / 'd.json')!r}]); sys.exit('torch' in sys.modules)"
    )
    start = time.perf_counter()
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
    assert time.perf_counter() - start < 3  # 0.1 s on an idle machine


@pytest.mark.parametrize(
    ("cpu", "gpus", "expected"),
    [
        ("Intel(R) Xeon(R) Processor", [], "intel-xeon-2c"),
        ("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", [], "intel-core-i7-8550u-2c"),
        ("AMD EPYC 9575F 64-Core Processor", [], "amd-epyc-9575f-2c"),
        ("any", [{"name": "NVIDIA H100 80GB HBM3"}], "nvidia-h100-80gb-hbm3"),
        ("any", [{"name": "NVIDIA L4"}, {"name": "NVIDIA L4"}], "nvidia-l4-x2"),
    ],
)
def test_slugs(cpu, gpus, expected):
    assert device.slug(cpu, 2, False, gpus) == expected


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "missing or damaged"),
        ("{", "missing or damaged"),
        ("{}", "its slug is None"),
        ("[]", "missing or damaged .it holds a list, not a dict"),
        ('{"slug": ""}', "its slug is ''"),
        ('{"slug": "../elsewhere"}', "its slug is"),
    ],
)
def test_a_file_that_describes_no_machine_is_named_with_the_remedy(tmp_path, content, problem):
    path = tmp_path / "device.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=rf"device.json.*{problem}.*Describe this machine again: draftwright device /"):
        read_device(path)


def test_a_stage_that_measures_reads_it_so(tmp_path):
    args = toy_bench(tmp_path, "trial", {})
    args.device.write_text("{}")
    with pytest.raises(ValueError, match="device.json describes no machine"):
        open_bench(args, TrialConfig(), {})


def test_gpus_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559 MiB, 570.1'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert device.describe_device()["slug"] == "nvidia-h100-80gb-hbm3"
