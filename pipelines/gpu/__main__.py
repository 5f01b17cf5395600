"""Measure one GPU: `python -m pipelines.gpu docs/gpu` (needs torch, transformers, numpy and safetensors).

Trains the pair on the device first (a minute or two; kept in --pair for the next time), then measures part by part and writes
OUTPUT/<device>.json after each, its decodes below OUTPUT/<device>: what a part has found survives whatever comes later, and a
part that fails says why and leaves the others alone. Parts that would begin after --minutes are left out and named; --parts
measures them later. A decode that is there is not timed again, unless code, settings or weights are others; remove the folder to
do so. Draw the report with `python -m pipelines gpu.report`.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from tqdm import tqdm

from pipelines.builtin.builtin_pair import BuiltinParameters, training_facts
from pipelines.device import describe_device
from pipelines.gpu.bench import COMPILED, THEIRS, Bench, Result, release
from pipelines.gpu.ceilings import measured_ceilings
from pipelines.gpu.pairs import DRAFT_WIDTH, LEAST, SHAPES, Sized, draft_shape, trained
from pipelines.gpu.parts import agreement, growth, hugging_face, methods, plain
from pipelines.gpu.picture import picture
from pipelines.measuring.provenance import provenance, source_hash
from pipelines.outputs import digest, write_json
from pipelines.parameters import PARAMETERS, load_parameters
from pipelines.terminal import count
from runtime.device import native_dtype

RATIOS = (10, 4, 20)
CODE = ("runtime", "predictors", "pipelines/builtin", "pipelines/measuring", "pipelines/gpu")
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
    folder = args.output / f"{described['slug']}{'-tiny' if args.tiny else ''}"
    path = folder.with_name(f"{folder.name}.json")
    builtin = load_parameters(BuiltinParameters, "pystdlib", "models.builtin", args.params)
    kept = trained(args.pair, builtin, device, args.prompts, args.prompt_tokens, grown=not args.tiny)
    dtype = native_dtype(device)
    ceilings = measured_ceilings(device, dtype)
    origin = provenance(described) | {"dtype": str(dtype).removeprefix("torch.")}
    shapes = ["tiny"] if args.tiny else ["7b", "1b", "13b"]
    given = {name: getattr(args, name) for name in ("prompts", "prompt_tokens", "new_tokens")}
    results: Result = {"settings": given | {"shapes": shapes}, "training": training_facts(args.pair)}
    fixed = results | {name: origin[name] for name in ("device", "versions", "dtype")} | {"code": source_hash(CODE)}
    fingerprint = digest(fixed)
    results |= {"provenance": origin, "fingerprint": fingerprint, "ceilings": vars(ceilings)}
    results |= {"parts": _earlier(path, fingerprint), "failed": {}, "left_out": []}
    results["seconds"] = {"setup": perf_counter() - started}
    with tqdm(unit="decode", disable=None) as bar:
        bench = Bench(device, dtype, kept, args.new_tokens, folder, fingerprint, bar)
        for name, part in _parts(bench, shapes).items():
            if args.parts and name.split("/")[0] not in args.parts:
                continue
            began = perf_counter()
            if began - started > 60 * args.minutes:
                results["left_out"].append(name)
                continue
            bar.write(f"{(began - started) / 60:5.1f} min  {name}")
            bar.set_description(name)
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


def _parts(bench: Bench, shapes: Sequence[str]) -> dict[str, Part]:
    """By name, in the order of their worth."""
    first, *other_shapes = shapes
    target, tiny = SHAPES[first], first == "tiny"
    small = target if tiny else Sized(LEAST, target.vocabulary)
    width = target.shape if tiny else DRAFT_WIDTH
    least = bench.trained.draft.config.num_hidden_layers
    pairs = {f"{first}-c{ratio}": (target, draft_shape(target, ratio, width, least)) for ratio in RATIOS}
    usual, *others = list(pairs)[:1] if tiny else pairs
    parts: dict[str, Part] = {
        f"plain/{first}": partial(plain, bench, first, target),
        "agreement": partial(agreement, bench, small),
        f"methods/{usual}": partial(methods, bench, usual, *pairs[usual], whole=True),
        f"hugging_face/{usual}": partial(hugging_face, bench, "hugging_face", usual, *pairs[usual], THEIRS),
        "picture": partial(picture, bench, *pairs[usual]),
    }
    parts |= {f"methods/{name}": partial(methods, bench, name, *pairs[name], whole=False) for name in others}
    parts["growth"] = partial(growth, bench, *pairs[usual])
    parts |= {f"plain/{name}": partial(plain, bench, name, SHAPES[name]) for name in other_shapes}
    if not tiny:  # last, as compiling takes long and handles the matrix library's memory as if nothing else ran
        compiled = partial(hugging_face, bench, "hugging_face_compiled", usual, *pairs[usual], COMPILED)
        parts["hugging_face/compiled"] = compiled
    return parts


def _earlier(path: Path, fingerprint: str) -> Result:
    """Parts that an earlier run of the same code, settings and weights has left."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    return dict(known["parts"]) if known.get("fingerprint") == fingerprint else {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipelines.gpu", description=__doc__.split("\n\n")[0])
    parser.add_argument("output", type=Path, help="folder to write one JSON file and one folder per device to")
    parser.add_argument(
        "--pair", type=Path, default=Path("data/gpu/pair"), help="the trained pair (default: %(default)s)"
    )
    parser.add_argument("--params", type=Path, default=PARAMETERS, help="parameter file (default: %(default)s)")
    parser.add_argument(
        "--parts",
        nargs="+",
        help="only these: plain, agreement, methods, hugging_face, picture, growth; others of these settings are kept",
    )
    parser.add_argument("--prompts", type=count, default=4, help="per part and arm (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=count, default=128, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--new-tokens", type=count, default=64, help="tokens decoded after it (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=8.5, help="begin no part after so many (default: %(default)s)")
    parser.add_argument(
        "--tiny", action="store_true", help="small shapes and the small pair: tries the command on any machine"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
