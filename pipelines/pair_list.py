"""List the ready-made pairs that `draftwright pair add` copies into the parameter file.

draftwright pair list
"""

import argparse

from pipelines.pair_add import ready_pairs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> None:
    paths = ready_pairs()
    width = max(len(path.stem) for path in paths)
    for path in paths:
        comments = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
        print(f"{path.stem:{width}}  " + f"\n{'':{width}}  ".join(comments))
