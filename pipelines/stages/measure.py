"""Stage ``measure``: time every arm of the table in the parameter file on held-out prompts, interleaved and paired.

    validation prompts   arms of families with something to choose, and plain decoding: the fastest of each is chosen
    test prompts         every arm on every prompt, interleaved and paired

Writes a folder named after the device: ``decodes.parquet`` (a row for each decode), ``rounds.parquet`` (a row for each of its
rounds), ``findings.json`` (what validation prompts chose, exactness, notes) and ``provenance.json``. An interrupted measurement
goes on where it stopped.

    draftwright measure --pair smollm2 data/device.json data/smollm2/pair data/smollm2/prompts data/smollm2/measured
        --bundles data/smollm2/bundles
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm

from pipelines.measuring import names
from pipelines.measuring.arm_rows import ArmRow, expanded
from pipelines.measuring.arms import ArmBuilder, bundles_of
from pipelines.measuring.bench import Bench, Blocks, MeasurementLog, add_bench_arguments, allocated, mix_of, open_bench
from pipelines.measuring.exactness import agreement, exactness_rows, float32_pair, format_of
from pipelines.measuring.harness import Harness, apart, tokens_per_second
from pipelines.measuring.names import PLAIN
from pipelines.measuring.recorded import RecordedTexts
from pipelines.measuring.tables import Rows, write_timed
from pipelines.outputs import NOT_APPLICABLE, write_json
from pipelines.parameters import load_parameters
from pipelines.prompt_table import Prompt
from predictors.bundle import CARD, bundle_hash
from predictors.config import Checked, Count, Whole, at_least, not_empty
from predictors.sampling import SamplingSettings
from runtime import ModelPair


@dataclass(frozen=True)
class MeasureConfig(Checked):
    """Section ``measure``: which ``arms`` decode how many prompts, at which ``temperatures`` (0 and 1, if nothing is said), or
    ``settings`` with filters. ``exactness_prompts`` compare greedy texts with Hugging Face's."""

    arms: Annotated[tuple[ArmRow, ...], not_empty]
    temperatures: tuple[float, ...] | None = None
    settings: tuple[SamplingSettings, ...] = ()
    validation_prompts: Count = 6
    test_prompts: Count = 24  # of every slice as many as its share of the documents
    repeats: Count = 1
    max_new_tokens: Annotated[int, at_least(2)] = 48  # a prefill and a round
    threads: Count = 2
    seed: int = 0
    exactness_prompts: Whole = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        unfiltered = (0.0, 1.0) if self.temperatures is None else self.temperatures
        settings = self.settings or tuple(map(SamplingSettings, unfiltered))
        temperatures = tuple(dict.fromkeys(one.temperature for one in settings))
        if not settings:
            raise ValueError("temperatures must not be empty.")
        if self.temperatures not in (None, temperatures):
            raise ValueError(f"temperatures {self.temperatures} are not those of settings: give one of them.")
        object.__setattr__(self, "settings", settings)
        object.__setattr__(self, "temperatures", temperatures)
        expanded(self.arms, "")


class Measurement:
    """A measurement under way; ``choices`` are those of validation prompts."""

    def __init__(self, pair: ModelPair, config: MeasureConfig, bundles: Path, log: MeasurementLog) -> None:
        self.config, self.log = config, log
        self.builder = ArmBuilder(pair, bundles, config.max_new_tokens)
        rows = expanded(config.arms, str(bundles))
        self.arms = self.builder.build(rows)
        self.rows = [row for row in rows if row.name in self.arms]
        self.choices: list[dict[str, Any]] = []

    def run(self, validation: Sequence[Prompt], test: Sequence[Prompt]) -> Rows:
        """Rows of all decodes. Test prompts are decoded by all static chains, and of other families by what was chosen."""
        config, every = self.config, list(self.arms.values())
        swept = [self.arms[row.name] for row in self.rows if row.choose or row.name == PLAIN]
        decodes = config.repeats * len(config.settings)  # of an arm and a prompt
        about = decodes * (len(validation) * len(swept) + len(test) * len(every))
        with tqdm(total=about, desc="measure", unit="decode") as bar:
            harness = Harness(Blocks(self.log, bar), config.settings, config.seed, config.repeats)
            harness.warm_up(self.arms, validation[0])
            rows = harness.time([(prompt, swept) for prompt in validation])
            self.choices = self.log.once("choices", lambda: self._choices(rows))  # a resumed run keeps them
            kept = {choice["arm"] for choice in self.choices}
            kept |= {row.name for row in self.rows if not row.choose or row.family == names.CHAIN}
            tested = [arm for name, arm in self.arms.items() if name in kept]
            bar.total = about - decodes * len(test) * (len(every) - len(tested))
            return rows + harness.time([(prompt, tested) for prompt in test])

    def _choices(self, rows: Rows) -> list[dict[str, Any]]:
        """The fastest arm of each family at each setting, with the sweep it was chosen from."""
        families: dict[str, list[str]] = {}
        for row in self.rows:
            if row.choose:
                families.setdefault(row.family, []).append(row.name)
        choices = []
        for settings in map(asdict, self.config.settings):
            for family, arms in families.items():
                sweep = {name: tokens_per_second(rows, name, **settings) for name in arms}
                best = max(sweep, key=sweep.__getitem__)
                choices.append(settings | {"family": family, "arm": best, "tokens_per_second": sweep})
        return choices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")
    bundles_help = "folder of exported bundles (default: %(default)s); arms of those not there are left out"
    parser.add_argument("--bundles", type=Path, default=Path("bundles"), help=bundles_help)


def run(args: argparse.Namespace) -> None:
    config = load_parameters(MeasureConfig, args.pair, "measure", args.params)
    texts = RecordedTexts(args.texts, config.max_new_tokens)
    hashes = {"texts_sha256": texts.sha256}
    for folder in (args.bundles / name for row in expanded(config.arms, str(args.bundles)) for name in bundles_of(row)):
        hashes[f"{folder.name}_bundle_sha256"] = bundle_hash(folder) if (folder / CARD).is_file() else None
    bench = open_bench(args, config, {names.VALIDATION: None, names.TEST: None}, hashes)
    texts.require(bench.pair)
    validation, test = (texts.first(bench.prompts[split]) for split in (names.VALIDATION, names.TEST))
    test = allocated(test, mix_of(test), config.test_prompts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        measurement = Measurement(bench.pair, config, args.bundles, bench.log)
        rows = measurement.run(validation[: config.validation_prompts], test)
    findings: dict[str, Any] = {"choices": measurement.choices}
    prompts = [prompt.tokens for prompt in test[: config.exactness_prompts]]
    findings |= bench.log.once("checks", lambda: [_checks(bench, config, args.bundles, prompts)])[0]
    findings["notes"] = notes_of(str(one.message) for one in caught if one.category is UserWarning) + _bypassed(rows)
    findings["notes"] += [f"no bundle {name}: its arms are left out" for name in measurement.builder.missing]
    if measurement.builder.draftless:
        reason = NOT_APPLICABLE if bench.pair.draft is None else "not applicable: the draft is no model of its own"
        findings["notes"] += [f"{reason}: arms {', '.join(measurement.builder.draftless)}"]
    decodes, rounds = apart(rows)
    write_timed(bench.folder, args.pair, decodes, rounds)
    write_json(bench.folder / names.FINDINGS, findings)
    write_json(bench.folder / names.PROVENANCE, bench.origin(args.pair))
    bench.log.remove()
    _print_summary(bench.folder, rows, findings)


def _checks(bench: Bench, config: MeasureConfig, bundles: Path, prompts: list[list[int]]) -> dict[str, Any]:
    """Exactness of every arm of ours, in float32 where that fits beside the served pair, and there agreement of the forwards."""
    if not prompts:
        return {"exactness": [], "forward_agreement": {}}
    precise = float32_pair(bench.location, prompts, config.max_new_tokens)
    pair = precise or bench.pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a head trained on bfloat16 states serves float32 ones here
        arms = ArmBuilder(pair, bundles, config.max_new_tokens).build(expanded(config.arms, str(bundles)))
        found = exactness_rows(pair, prompts, arms, config.max_new_tokens)
    near = {} if precise is None else agreement(precise, prompts)
    return {"exactness": found, "exact_format": format_of(pair), "forward_agreement": near}


def notes_of(warned: Iterable[str]) -> list[str]:
    """List what was warned of, once; of bundles that were all captured in the same other format, one is named.

    Examples
    --------
    >>> notes_of(["a was trained on x", "c", "b was trained on x", "c"])
    ['a was trained on x (and 1 more)', 'c']
    """
    alike: dict[str, list[str]] = {}
    for text in sorted(set(warned)):
        alike.setdefault(text.partition(" was trained on ")[2] or text, []).append(text)
    return [first + (f" (and {len(others)} more)" if others else "") for first, *others in alike.values()]


def _bypassed(decodes: Rows) -> list[str]:
    """How much of the learned controllers' arms was really decoded at their fallback."""
    bypassed: Counter[tuple[float, str]] = Counter()
    rounds: Counter[tuple[float, str]] = Counter()
    for row in decodes:
        key = row["temperature"], row["arm"]
        bypassed[key] += row.get("bypassed") or 0
        rounds[key] += row.get("rounds") or 0
    return [
        f"T={key[0]:g}: {key[1]} stood aside in {count / rounds[key]:.0%} of its rounds (static gamma instead)"
        for key, count in sorted(bypassed.items())
        if count
    ]


def _print_summary(folder: Path, rows: Rows, findings: dict[str, Any]) -> None:
    test = [row for row in rows if row["split"] == names.TEST]
    for choice in findings["choices"]:
        if choice["family"] == names.CHAIN:
            settings = asdict(SamplingSettings.of(choice))
            plain, best = (tokens_per_second(test, arm, **settings) for arm in (names.PLAIN, choice["arm"]))
            name = SamplingSettings(**settings).name
            print(f"{name}: {choice['arm']} {best:.0f} tokens/s, {names.PLAIN} {plain:.0f} tokens/s")
    form = findings.get("exact_format", "float32")
    inexact = [row["arm"] for row in findings["exactness"] if not row[f"exact_{form}"]]
    print(f"greedy text in {form}: {'equal for every arm' if not inexact else 'differs for ' + ', '.join(inexact)}")
    for note in findings["notes"]:
        print(f"note: {note}")
    print(f"{folder}: {len(rows)} decodes")
