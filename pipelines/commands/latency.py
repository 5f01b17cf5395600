"""Show the latency profiles: what passes cost here, how many draft steps fit in a target pass, what wider passes add.

draftwright latency                                       # every profile below data/
draftwright latency --pair smollm2 --plot latency.png
draftwright latency --pair smollm2 --acceptance 0.75     # and how fast each static draft length would be
draftwright latency data/smollm2/latency/some-device.json
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.terminal import count

if TYPE_CHECKING:
    from predictors.latency.profile import LatencyProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", type=Path, nargs="?", default=Path("data"), help="data folder, or one profile (default: %(default)s)")
    add("--pair", help="of a data folder, the profiles of this pair only")
    add("--plot", type=Path, metavar="FILE", help="also draw the profile, as PNG; takes one profile")
    often = "also predict tokens/s, if a drafted token is accepted so often"
    add("--acceptance", type=float, metavar="ALPHA", help=often)
    for name, kind, default in (("prompt-tokens", count, 128), ("new-tokens", count, 128), ("temperature", float, 0.0)):
        add(f"--{name}", type=kind, default=default, help="of the predicted request (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    from pipelines.places import warn_of_noise
    from pipelines.report.latency import latency_table, prediction_table
    from predictors.latency.profile import read_profile

    paths = [args.data] if args.data.is_file() else sorted(args.data.glob(f"{args.pair or '*'}/latency/*.json"))
    if not paths:
        of_pair = f" of pair {args.pair!r}" if args.pair else ""
        raise ValueError(f"no latency profile{of_pair} below {args.data}. Run dvc repro (or make repro) first.")
    if args.plot and len(paths) > 1:
        names = ", ".join(map(str, paths))
        raise ValueError(f"--plot draws one profile, and there are {len(paths)}: {names}. Name one instead of DATA.")
    profiles = [read_profile(path) for path in paths]
    for path, profile in zip(paths, profiles, strict=True):
        print("\n".join([str(path), latency_table(profile), *hardware_line(profile)]) + "\n")
        warn_of_noise(profile)
        if args.acceptance is not None:
            request = args.prompt_tokens, args.new_tokens, args.temperature
            print(prediction_table(profile, args.acceptance, *request) + "\n")
    if args.plot:
        from pipelines.outputs import replacing
        from pipelines.report.latency import passes
        from pipelines.report.page import png

        with replacing(args.plot) as partial:
            partial.write_bytes(png(passes(profiles[0])))
        print(args.plot)


def hardware_line(profile: "LatencyProfile") -> Iterator[str]:
    """Say in which share of the time of passes of one token a copy moves their weights, and joules where they were counted."""
    hardware, context = profile.provenance.get("hardware"), profile.table("target").axes["context"][0]
    if hardware is None:
        return
    shares = []
    for model, read in hardware["weights"].items():
        seconds = profile.latency(
            model, **{"target": {"tokens": 1}, "draft": {"rows": 1}}[model], context=context
        ).seconds
        joules = f", {hardware['watts'] * seconds:.2g} J" if "watts" in hardware else ""
        shares.append(f"{model} {read / hardware['bandwidth'] / seconds:.0%}{joules}")
    yield f"share of bandwidth ({hardware['bandwidth'] / 1e9:.1f} GB/s copied) of a pass of one token: {'; '.join(shares)}"
