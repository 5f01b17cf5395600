"""Measure one GPU: `python -m pipelines.gpu docs/gpu` (needs torch, transformers, numpy and safetensors).

Trains the pair on the device first (a minute or two; kept in --pair for the next time), then measures part by part and writes
OUTPUT/<device>.json after each: what a part has found survives whatever comes later, and a part that fails says why and leaves
the others alone. Parts that would begin after --minutes are left out and named; --parts measures them later. Draw the report with
`python -m pipelines.gpu.report`.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from pipelines.builtin.builtin_pair import BuiltinParameters
from pipelines.device import describe_device
from pipelines.gpu.agreement import agreement
from pipelines.gpu.bench import Bench, Result, release
from pipelines.gpu.ceilings import measured_ceilings
from pipelines.gpu.growth import growth
from pipelines.gpu.methods import hugging_face, methods
from pipelines.gpu.pairs import trained, training_facts
from pipelines.gpu.picture import picture
from pipelines.gpu.plain import plain
from pipelines.gpu.shapes import DRAFT_WIDTH, LEAST, SHAPES, Sized, draft_shape
from pipelines.gpu.sweep import cost_sweep
from pipelines.measuring.provenance import provenance
from pipelines.outputs import write_json
from pipelines.parameters import PARAMETERS, load_parameters
from runtime.dtypes import native_dtype

RATIOS = (10, 4, 20)
Part = Callable[[], Result]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the number of parts that failed."""
    args = _parser().parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not args.tiny:
        print(
            "there is no CUDA device here, and on a CPU these shapes take hours. Run this on the GPU, or try the command with "
            "--tiny --pair data/pystdlib/pair after make repro.",
            file=sys.stderr,
        )
        return 2
    started = perf_counter()
    described = describe_device()
    path = args.output / f"{described['slug']}{'-tiny' if args.tiny else ''}.json"
    builtin = load_parameters(BuiltinParameters, "pystdlib", "models.builtin", args.params)
    kept = trained(args.pair, builtin, device, args.prompts, args.prompt_tokens, grown=not args.tiny)
    dtype = native_dtype(device)
    bench = Bench(device, dtype, kept, measured_ceilings(device, dtype), args.prompts, args.new_tokens)
    origin = provenance(described) | {"dtype": str(dtype).removeprefix("torch.")}
    results: Result = {
        "provenance": origin,
        "settings": {"prompts": args.prompts, "prompt_tokens": args.prompt_tokens, "new_tokens": args.new_tokens},
        "training": training_facts(args.pair),
        "ceilings": bench.ceilings.facts(),
        "parts": _earlier(path, origin),
        "failed": {},
        "left_out": [],
        "seconds": {"setup": perf_counter() - started},
    }
    for name, part in _parts(bench, args.tiny).items():
        if args.parts and name.split("/")[0] not in args.parts:
            continue
        began = perf_counter()
        if began - started > 60 * args.minutes:
            results["left_out"].append(name)
            continue
        print(f"{(began - started) / 60:5.1f} min  {name}", flush=True)
        try:
            results["parts"][name] = part()
        except Exception as error:  # whatever it is, the other parts still count
            results["failed"][name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        results["seconds"][name] = perf_counter() - began
        release(device)
        write_json(path, results)
    write_json(path, results)
    print(f"{path}: {len(results['parts'])} parts, failed: {list(results['failed'])}, left out: {results['left_out']}")
    return len(results["failed"])


def _parts(bench: Bench, tiny: bool) -> dict[str, Part]:
    """By name, in the order of their worth."""
    width = SHAPES["tiny"].shape if tiny else DRAFT_WIDTH
    least = bench.trained.draft.config.num_hidden_layers
    shapes = ["tiny"] if tiny else ["7b", "1b", "13b"]
    main_shape = SHAPES[shapes[0]]
    small = main_shape if tiny else Sized(LEAST, main_shape.vocabulary)

    def draft(ratio: float) -> Sized:
        return draft_shape(main_shape, ratio, width, least)

    usual, *others = RATIOS[:1] if tiny else RATIOS
    return {
        f"plain/{shapes[0]}": partial(plain, bench, main_shape),
        "agreement": partial(agreement, bench, small, small),
        f"sweep/{usual}": partial(cost_sweep, bench, main_shape, draft(usual)),
        "methods": partial(methods, bench, main_shape, draft(usual)),
        "hugging_face": partial(hugging_face, bench, main_shape, draft(usual), compiled=False),
        "picture": partial(picture, bench, main_shape, draft(usual)),
        **{f"sweep/{ratio}": partial(cost_sweep, bench, main_shape, draft(ratio)) for ratio in others},
        "growth": partial(growth, bench, main_shape, draft(usual)),
        **{f"plain/{name}": partial(plain, bench, SHAPES[name]) for name in shapes[1:]},
        # last, as compiling takes long and handles the matrix library's memory as if nothing else ran
        **(
            {}
            if tiny
            else {"hugging_face/compiled": partial(hugging_face, bench, main_shape, draft(usual), compiled=True)}
        ),
    }


def _earlier(path: Path, origin: Result) -> Result:
    """Parts that an earlier run of the same commit has left."""
    if not path.is_file():
        return {}
    known = json.loads(path.read_text())
    same = not origin["uncommitted_changes"] and known["provenance"]["commit"] == origin["commit"]
    return dict(known["parts"]) if same else {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipelines.gpu", description=__doc__.split("\n\n")[0])
    parser.add_argument("output", type=Path, help="folder to write one JSON file per device to")
    parser.add_argument(
        "--pair", type=Path, default=Path("data/gpu/pair"), help="the trained pair (default: %(default)s)"
    )
    parser.add_argument("--params", type=Path, default=PARAMETERS, help="parameter file (default: %(default)s)")
    parser.add_argument(
        "--parts",
        nargs="+",
        help="only these: plain, agreement, sweep, methods, hugging_face, picture, growth; others of this commit are kept",
    )
    parser.add_argument("--prompts", type=int, default=4, help="per part and arm (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens decoded behind it (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=8.5, help="begin no part after so many (default: %(default)s)")
    parser.add_argument(
        "--tiny", action="store_true", help="small shapes and the small pair: tries the command on any machine"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
