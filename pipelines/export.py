"""Stage ``export``: write a controller bundle, of whichever of its predictors decides best on validation rows."""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.parameters import add_pair_arguments, load_parameters


@dataclass(frozen=True)
class ExportConfig:
    """A bundle under section ``export``: the ``predictors`` to choose from (of equals the first is taken) by their calibration
    ``decoding`` (a subfolder), and the ``decoder`` to load it into; ``None``: a chain of the label's γ."""

    predictors: tuple[str, ...]
    decoding: str | None = None
    decoder: dict | None = None

    def __post_init__(self) -> None:
        if not self.predictors:
            raise ValueError("predictors must name at least one predictor.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--bundle", required=True, help="key under 'export:' of the pair")
    parser.add_argument("predictors", type=Path, help="folder of trained predictors")
    parser.add_argument("calibration", type=Path, help="folder of their calibration records")
    parser.add_argument("output", type=Path, help="bundle folder to write")
    parser.add_argument(
        "--texts", type=Path, help="folder of text traces, for the card's reference (draftwright drift)"
    )


def run(args: argparse.Namespace) -> None:
    from pipelines.head_card import build_card, selection
    from pipelines.head_folder import read_head
    from pipelines.reference import KEY, reference
    from predictors.bundle import write_bundle

    config = load_parameters(ExportConfig, args.pair, f"export.{args.bundle}", args.params)
    calibration = args.calibration / (config.decoding or "")
    records = {name: _read_calibration(calibration / f"{name}.json") for name in config.predictors}
    values = {name: record["validation"]["decision"]["head"] for name, record in records.items()}
    chosen = max(config.predictors, key=values.__getitem__)
    heads = {name: read_head(args.predictors / name) for name in config.predictors}
    for name, head in heads.items():
        if head.sha256 != records[name]["head_sha256"]:
            raise ValueError(f"the calibration of {name!r} belongs to another head. Run the calibrate stage again.")
        if records[name]["labels_sha256"] != records[chosen]["labels_sha256"]:
            raise ValueError(f"{name!r} and {chosen!r} were measured on different labels. Run the train stage again.")
        if head.target != heads[chosen].target:
            raise ValueError(
                f"{name!r} predicts {head.target.name} and {chosen!r} {heads[chosen].target.name}: one bundle holds one kind of "
                f"controller. Change export.{args.bundle}.predictors."
            )
    card = build_card(
        heads[chosen], records[chosen], selection(chosen, values, records), _decoder(config, heads[chosen].spec.gamma)
    )
    tensors = heads[chosen].network.state_dict()
    write_bundle(args.output, card | {KEY: reference(card, tensors, args.texts)}, tensors)
    print(f"{args.output}: {card['selection']['reason']}")


def _decoder(config: ExportConfig, gamma: int) -> dict[str, Any]:
    """The configuration of a bundle's decoder; γ is the label's, which the head speaks of."""
    if config.decoder is None:
        return {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}, "verifier": "block"}
    return {"gamma": gamma, **config.decoder}


def _read_calibration(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} does not exist. Run the calibrate stage, or change the predictors under export."
        ) from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: damaged ({error}). Run the calibrate stage again.") from error
    return record


if __name__ == "__main__":
    from pipelines.cli import main

    main(["export", *sys.argv[1:]])
