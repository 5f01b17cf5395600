"""Stage ``device``: describe this machine, so that what was timed elsewhere is timed again here and nothing else is redone.

Runs always and takes no time; the file changes only with the machine (processor, usable cores, number formats, GPUs, system).

    draftwright device data/device.json
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from pipelines.outputs import write_json

CPU_INFO = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}
FIELDS, SECONDS = ("name", "memory", "driver"), 10.0
NOISE = r"\((r|tm|c)\)|@.*|\bcpu\b|\b\d+-core\b|\bprocessor\b$"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("output", type=Path, help="JSON file to write")


def run(args: argparse.Namespace) -> None:
    device = describe_device()
    write_json(args.output, device)
    print(f"{args.output}: {device['slug']}")


def describe_device() -> dict[str, Any]:
    """The machine as later stages record it; ``slug`` names it in paths."""
    model, flags = _processor()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    bfloat16 = sorted(BFLOAT16_FLAGS & flags)
    gpus = _gpus()
    return {
        "slug": slug(model, cores, bool(bfloat16), gpus),
        "cpu": model,
        "cores": cores,
        "bfloat16_flags": bfloat16,
        "gpus": gpus,
        "system": f"{platform.system()} {platform.machine()}",
    }


def slug(cpu: str, cores: int, bfloat16: bool, gpus: list[dict[str, str]]) -> str:
    """A name legal in paths and MLflow: the first GPU's, or the processor with its usable cores.

    Examples
    --------
    >>> slug("AMD EPYC 9575F 64-Core Processor", 4, True, [])
    'amd-epyc-9575f-4c-bf16'
    """
    if gpus:
        name = gpus[0]["name"] + (f" x{len(gpus)}" if len(gpus) > 1 else "")
    else:
        name = re.sub(NOISE, " ", re.sub(NOISE, " ", cpu.lower().strip()).strip())
        name += f" {cores}c{' bf16' if bfloat16 else ''}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _processor() -> tuple[str, set[str]]:
    """Model name and instruction-set flags."""
    fields: dict[str, str] = {}
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            fields[key.strip().lower()] = value.strip()
    flags = fields.get("flags") or fields.get("features") or ""
    return fields.get("model name") or platform.processor() or platform.machine(), set(flags.lower().split())


def _gpus() -> list[dict[str, str]]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{command} did not answer within {SECONDS} s, so the machine is unknown. Mend it.") from error
    rows = [line.split(", ") for line in answer.stdout.splitlines()] if answer.returncode == 0 else []
    return [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]  # among warnings
