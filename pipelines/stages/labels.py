"""Stage ``labels``: label the positions of the traces for one kind of predictor.

Writes the label table, and with ``--report`` its counts.

    draftwright labels --pair smollm2 --kind chains data/smollm2/traces/texts data/smollm2/labels/chains.parquet
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.places import place_of

if TYPE_CHECKING:
    from predictors.training.labelling import Labels

KINDS = ("chains", "tokens", "trees")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--kind", required=True, choices=KINDS, help="what to label: a subsection of labels")
    parser.add_argument("traces", type=place_of, help="folder of text traces; of kind trees, of root traces")
    parser.add_argument("output", type=Path, help="Parquet file to write")
    parser.add_argument("--report", type=Path, help="JSON file to write: counts of what was labelled")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import replacing, write_json
    from predictors.training import labelling
    from predictors.training.tables import RootTable, TextTable

    # by kind the table of its traces, its configuration, and what labels them
    known: dict[str, tuple[Any, type[Any], Callable[[Any, Any], Labels]]] = {
        labelling.CHAINS: (TextTable, labelling.ChainLabelConfig, labelling.label_chains),
        labelling.TOKENS: (TextTable, labelling.LabelConfig, labelling.label_tokens),
        labelling.TREES: (RootTable, labelling.LabelConfig, labelling.label_trees),
    }
    table, config, label = known[args.kind]
    parameters = load_parameters(config, args.pair, f"labels.{args.kind}", args.params)
    labels = label(table.read(args.traces), parameters)
    with replacing(args.output) as partial:
        labelling.write_labels(labels, partial)
    if args.report is not None:
        write_json(args.report, labels.report | labels.facts | {"traces_sha256": labels.traces_sha256})
    print(f"{args.kind}: {labels.table.num_rows} rows; {labels.report}")
