"""The README's tree matches the disk, and its five files exist."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def documented() -> set[str]:
    tree = README.split("## The tree")[1].split("```")[1]
    paths, parent = set(), ""
    for line in tree.strip().splitlines():
        name = line.split()[0]
        nested = line.startswith("  ")
        if not nested:
            parent = name
        paths.add((parent + name if nested else name).rstrip("/"))
    return paths


def tracked() -> set[str]:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    packages = {str(Path(file).parent) for file in files if file.endswith(".py") and not file.startswith("tests/")}
    top = {file.split("/")[0] for file in files if not file.startswith(".")}
    return top | packages


def test_tree_matches_the_disk():
    ours = tracked() - {"README.md", ".", "dvc.lock"}
    assert documented() == ours


def test_first_files_exist():
    files = re.findall(r"^\d\. `([^`]+)`", README, re.MULTILINE)
    assert len(files) == 5
    for file in files:
        assert (ROOT / file).is_file(), file
