"""Stage ``trial``: time an exported bundle on held-out documents, and let the gate judge it over the best static chain.

Writes a folder named after the device: ``decoding.parquet`` (timed, interleaved decodes), ``provenance.json`` and
``verdict.json``, the gate's verdict with its bounds and the evidence, which ``draftwright promote --evidence`` reads. Nothing is
promoted here. An interrupted trial goes on where it stopped.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.device_file import read_device
from pipelines.measuring.bench import add_bench_arguments, open_bench
from pipelines.measuring.names import PROVENANCE, TEST, VALIDATION
from pipelines.parameters import load_parameters

if TYPE_CHECKING:
    from pipelines.promotion.gate import Evidence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    parser.add_argument("bundle", type=Path, help="folder of the bundle to try; its name is the predictor's")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from pipelines.promotion.gate import Bounds, judge, judged
    from pipelines.promotion.names import VERDICT
    from pipelines.promotion.trial import CHALLENGER

    path = args.output / read_device(args.device)["slug"] / VERDICT
    bounds = load_parameters(Bounds, args.pair, "promotion", args.params)
    evidence = tried(args, args.bundle.name, {CHALLENGER: args.bundle})
    verdict = judge(evidence, bounds)
    write_json(path, judged(evidence, verdict, bounds))
    print(f"{path}: {args.bundle.name} " + ("would pass" if verdict.passed else "would be refused"))
    for reason in verdict.reasons:
        print(f"  {reason}")


def tried(args: argparse.Namespace, predictor: str, bundles: Mapping[str, Path]) -> "Evidence":
    """What a trial of the ``challenger`` among ``bundles`` says of it, over the ``champion`` there or over the best static chain.
    A bundle that does not serve the pair is not timed.

    Reads from ``args`` what `open_bench` does, and ``output``, below which decodes and provenance are written.
    """
    import pandas as pd

    from pipelines.measuring.decoding_table import DECODES, write_table
    from pipelines.measuring.exactness import load_float32
    from pipelines.outputs import write_json
    from pipelines.pair_folder import read_facts, read_pair
    from pipelines.promotion import trial
    from pipelines.promotion.names import DECODING
    from pipelines.prompt_table import read_prompts
    from predictors.bundle import CARD, TENSORS, bundle_hash

    for folder in bundles.values():
        missing = [name for name in (CARD, TENSORS) if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder} is no bundle, it lacks {' and '.join(missing)}. Export it first (dvc repro).")
    challenger = bundles[trial.CHALLENGER]
    hashes = {f"{who}_sha256": bundle_hash(folder) for who, folder in bundles.items()}
    champion = hashes.get(f"{trial.CHAMPION}_sha256")
    place = read_pair(args.pair_folder)
    precise = load_float32(place.target, place.draft, place.tokenizer)
    problem = trial.problem_of(challenger, precise)
    if problem is not None:
        return trial.unservable(args.pair, predictor, challenger, champion, problem)
    old = None if champion is None else trial.problem_of(bundles[trial.CHAMPION], precise)
    if old is not None:
        raise ValueError(f"the champion cannot be timed ({old}). Roll it back first (draftwright rollback).")
    config = replace(
        load_parameters(trial.TrialConfig, args.pair, "trial", args.params),
        sampling=trial.settings_of(*bundles.values()),
    )
    bench = open_bench(args, config, {VALIDATION: config.validation_prompts, TEST: config.test_prompts}, **hashes)
    study = trial.TrialStudy(bench.pair, config, bundles, bench.prompts, bench.log)
    rows = study.run()
    exactness = trial.exact(
        precise,
        challenger,
        [prompt.tokens for prompt in bench.prompts[TEST][: config.exactness_prompts]],
        config.max_new_tokens,
    )
    known = [prompt for split in ("train", VALIDATION) for prompt in read_prompts(args.prompts, split)]
    learned = trial.learned_documents(known, bench.prompts[TEST], read_facts(args.pair_folder))
    origin = bench.origin(args.pair) | {"capped": study.capped}
    write_table(bench.folder / DECODING, rows, DECODES)
    write_json(bench.folder / PROVENANCE, origin)
    bench.log.remove()
    return trial.evidence_of(
        args.pair, predictor, challenger, champion, pd.DataFrame(rows), exactness, learned, config, origin
    )


if __name__ == "__main__":
    from pipelines.cli import main

    main(["trial", *sys.argv[1:]])
