"""Say what a pair needs before anything is downloaded: memory by device, disk and time, what does not fit and what makes it fit.

Models are made from their configurations where they take no memory (`pipelines.meta_pair`); the runtime's and the collectors' own
code then says what they would hold. A model's configuration stands in the pair's block under ``config``, or lies on this machine.
Hours are those of reading the weights from the device's memory, pass by pass. Prefills compute, and take longer.

    draftwright plan --pair my-pair --device-memory 80GB --devices 2 --bandwidth 3.35TB
"""

import argparse
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pipelines.device_memory import available_memory
from pipelines.measuring.arm_rows import expanded
from pipelines.measuring.measurement import MeasureConfig
from pipelines.measuring.tuning.study import TuneConfig
from pipelines.meta_pair import meta_pair
from pipelines.pair import AUTO, Models
from pipelines.pair_folder import DTYPES
from pipelines.parameters import add_pair_arguments, load_parameters, read_pair
from pipelines.promotion.plan import TrialConfig
from pipelines.prompt_table import MEASURED_SPLITS, Prompt
from pipelines.prompts import PromptParameters
from pipelines.terminal import count
from pipelines.traces import CONFIGS, SECTION, TraceLimits, collector
from predictors.schema import EDIT
from runtime import ModelPair
from runtime.causal_model import CausalLanguageModel
from runtime.device import native_dtype
from runtime.hugging_face import require_layers
from runtime.latency import LatencyConfig
from runtime.memory import ModelMemory, Work, model_memory
from trace_collection.collection import Collector, hidden_size, models_of, require_context
from trace_collection.shards import bytes_of, trace_schema
from trace_collection.trajectories import MOST_ROWS
from trace_collection.trees import TreeCollector

UNITS = {f"{prefix}B": 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T"))}
UNITS |= {f"{prefix}iB": 1024.0**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)}
PARTS = ("weights", "cache", "workspace")
LONGEST = "lower prompts.longest (of windows: prompts.max_tokens)"
SHARDS = "lower traces.texts.prompts_per_shard and that of trees"
TEXTS = "lower traces.texts.max_new_tokens"
TREES = "lower traces.trees.draws"


@dataclass(frozen=True)
class Phase:
    """What is done with models at a time, what they hold then, and what makes that less (``remedy``)."""

    name: str
    models: Mapping[str, CausalLanguageModel]
    held: Mapping[str, ModelMemory]
    remedy: str

    @property
    def columns(self) -> list[int]:
        """Bytes of weights, caches and workspaces, and of all of these."""
        parts = [sum(getattr(one, part) for one in self.held.values()) for part in PARTS]
        return [*parts, sum(parts)]

    def on_devices(self, count: int) -> list[int]:
        """Bytes on each of at most ``count`` devices that share consecutive parts, so that the fullest holds as little as it can.

        Parts are the target's embedding, each of its blocks, its head, and the draft as a whole. Every device has the workspaces.
        """
        parts = self._parts()
        capacities = range(max(parts), sum(parts))
        least = capacities.start + bisect_left(capacities, True, key=lambda one: len(_filled(parts, one)) <= count)
        return [part + self.columns[2] for part in _filled(parts, least)]

    def enough(self, memory: float) -> int | None:
        """The fewest devices of so much memory, if any number does."""
        counts = range(1, len(self._parts()) + 1)
        return next((count for count in counts if max(self.on_devices(count)) <= memory), None)

    def _parts(self) -> list[int]:
        parts: list[int] = []
        for name, one in self.held.items():
            size = one.weights + one.cache
            parts += [size] if name == "draft" else _blocks(self.models[name], size)
        return parts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="its type (default: %(default)s)")
    parser.add_argument("--device-memory", type=size, metavar="SIZE", help="of one device, as 80GB or 24GiB")
    parser.add_argument(
        "--devices", type=count, default=1, help="that the models are spread over (default: %(default)s)"
    )
    parser.add_argument("--bandwidth", type=size, metavar="SIZE", help="of a device's memory in a second, as 3.35TB")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="number format (default: models.dtype; bfloat16 where that is auto)"
    )


def run(args: argparse.Namespace) -> None:
    pair = meta_pair(args.pair, args.params, args.dtype)
    made, wrong = collectors(pair, args.pair, args.params)
    found = phases(pair, made, read_pair(args.pair, args.params), args.device)
    disk = {name: len(one.jobs) * one.rows_per_job * row_bytes(one) for name, one in made.items()}
    print("\n".join(_lines(found, disk, args.devices)))
    most = load_parameters(TraceLimits, args.pair, SECTION, args.params, besides=CONFIGS).max_gigabytes
    if sum(disk.values()) > most * 1e9:
        wrong.append(
            f"Traces may take {sum(disk.values()) / 1e9:.2f} GB, and traces.max_gigabytes is {most:g}: raise it, or lower "
            "traces.texts.prompts or traces.texts.layers."
        )
    if args.bandwidth is not None:
        weights = {name: held.weights for name, held in found[0].held.items()}
        for name, (target, draft) in passes(made, args.pair, args.params).items():
            seconds = (target * weights["target"] + draft * weights.get("draft", 0)) / args.bandwidth
            print(f"{name}: {target} passes of the target, {draft} of the draft, {seconds / 3600:.2f} hours")
    if args.device_memory is not None:
        wrong += too_large(found, args.devices, args.device_memory)
    if wrong:
        raise ValueError("\n".join([f"pair {args.pair} cannot run like this.", *wrong]))


def require_room(name: str, params: Path) -> None:
    """`ValueError` with what a pair does that does not fit what this machine's devices have free: all of them where its block
    spreads it, else one. A pair of unknown configurations is not refused."""
    models = load_parameters(Models, name, "models", params)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    devices = [place]
    if place.type == "cuda" and (models.device_map or models.draft_device):
        devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    dtype = str(native_dtype(place)).removeprefix("torch.") if models.dtype == AUTO else None
    try:
        pair = meta_pair(name, params, dtype, fetch=True)
    except FileNotFoundError:
        return
    sections = read_pair(name, params)
    made = collectors(pair, name, params)[0] if {"prompts", "traces"} <= sections.keys() else {}
    wrong = too_large(phases(pair, made, sections, place.type), len(devices), min(map(available_memory, devices)))
    if wrong:
        remedy = "Where another machine runs it, or less would do, set models.check_memory to false."
        raise ValueError("\n".join([f"pair {name} does not fit this machine.", *wrong, remedy]))


def size(text: str) -> float:
    """Bytes.

    Examples
    --------
    >>> size("80GB"), size("1.5 KiB")
    (80000000000.0, 1536.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(\w+)", text)
    if found is None or found[2] not in UNITS or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write a number above 0 and one of {', '.join(UNITS)}")
    return float(found[1]) * UNITS[found[2]]


def collectors(pair: ModelPair, name: str, params: Path) -> tuple[dict[str, Collector], list[str]]:
    """What would collect each trace, with as many and as long prompts as there may be, and what speaks against these."""
    parameters = load_parameters(PromptParameters, name, "prompts", params)
    longest = max(parameters.max_tokens if source.windows else parameters.longest for source in parameters.sources)
    mixed = _prompts(parameters, longest, "")
    edits = _prompts(parameters.edit, 2 * parameters.edit.max_tokens, EDIT)
    made: dict[str, Collector] = {}
    wrong = []
    for role, one in models_of(pair).items() if pair.draft is not None else ():
        try:
            require_layers(one.model, (one.num_layers,))
        except ValueError as error:
            wrong.append(f"{role}: {error}")
    for of in CONFIGS if pair.draft is not None else ["guesses"]:
        made[of] = collector(of, pair, load_parameters(CONFIGS[of], name, f"{SECTION}.{of}", params), mixed, edits)
        try:
            require_context(made[of])
        except ValueError as error:
            wrong.append(str(error))
    return made, wrong


def phases(pair: ModelPair, made: Mapping[str, Collector], sections: Mapping[str, Any], device: str) -> list[Phase]:
    """All that is done with the models, on a device of this type."""
    models = models_of(pair)

    def phase(name: str, remedy: str, target: Work, draft: Work, kept: int = 0) -> Phase:
        work = {"target": target, "draft": draft}
        held = {role: model_memory(role, model, work[role], device) for role, model in models.items()}
        held["target"] = replace(held["target"], workspace=held["target"].workspace + kept)
        return Phase(name, models, held, remedy)

    longest = max((_longest(one) for one in made.values()), default=0)
    new = max(sections.get(name, {}).get("max_new_tokens", 0) for name in ("measure", "tune", "trial"))
    request = Work(longest + new, longest)
    found = [phase("decoding", LONGEST, request, request)]
    drawing = [one for name, one in made.items() if name != "guesses"]
    if drawing:
        drawn = max(_together(one) * (_longest(one) + one.new_tokens) for one in drawing)
        kept = max(map(_kept, drawing))
        found.append(phase("drawing texts", SHARDS, Work(drawn, longest), Work(0, 0, 0), kept))
    for one in drawing:
        prompt, text, config = _longest(one), _longest(one) + one.new_tokens, one.config
        if isinstance(one, TreeCollector):
            nodes = max(config.draws) * one.extent.most_nodes
            found.append(phase("traces.trees", TREES, Work(text + nodes, prompt, nodes), Work(text + nodes, prompt)))
        else:
            beside = Work(text + one.new_tokens * config.gamma_max, prompt, one.new_tokens)
            found.append(phase("traces.texts", TEXTS, Work(0, 0, one.new_tokens), beside, _kept(one)))
    return found


def too_large(found: Sequence[Phase], devices: int, memory: float) -> list[str]:
    """Of every phase that does not fit, by how much and what makes it fit."""
    wrong = []
    for one in found:
        fullest = max(one.on_devices(devices))
        if fullest <= memory:
            continue
        enough = one.enough(memory)
        remedies = ["use larger ones" if enough is None else f"{enough} of them would do"]
        if one.columns[0] <= devices * memory:  # nothing else makes weights fewer
            remedies.append(one.remedy)
        where = "the device" if devices == 1 else f"the fullest of {devices} devices"
        wrong.append(
            f"{one.name}: {fullest / 1e9:.2f} GB on {where}, which has {memory / 1e9:.2f}: {', or '.join(remedies)}."
        )
    return wrong


def row_bytes(one: Collector) -> int:
    """Bytes of a row of a trace at most."""
    return bytes_of(trace_schema(one.columns, one.sizes, one.version, "", {}))


def passes(made: Mapping[str, Collector], pair: str, params: Path) -> dict[str, tuple[int, int]]:
    """How often a stage runs target and draft, at most: a decode counts as a plain one."""
    latency = load_parameters(LatencyConfig, pair, "latency", params)
    times = len(latency.contexts) * latency.visits * (latency.warmup + latency.calls)
    fed = (latency.target_tokens, latency.reference_tokens, latency.beside_tokens, latency.drafted)
    rows = (latency.draft_rows, latency.reference_rows, latency.beside_rows)
    found = {"latency": (times * sum(map(len, fed)), times * (sum(map(len, rows)) + sum(latency.drafted)))}
    for name, one in made.items():
        config: Any = one.config
        jobs, drawn = len(one.jobs), -(-len(one.jobs) // _together(one)) * one.new_tokens
        if name == "texts":
            found["traces.texts"] = drawn + jobs, jobs * (2 + config.gamma_max)
        elif isinstance(one, TreeCollector):
            roots = jobs * one.rows_per_job
            found["traces.trees"] = drawn + jobs + 2 * roots, roots * (1 + one.extent.depth)
        else:
            found["traces.guesses"] = jobs * one.rows_per_job, 0
    if "texts" not in made:
        return found
    measure = load_parameters(MeasureConfig, pair, "measure", params)
    tune = load_parameters(TuneConfig, pair, "tune", params)
    trial = load_parameters(TrialConfig, pair, "trial", params)
    arms = expanded(measure.arms, "")
    swept = sum(arm.choose for arm in arms)
    decodes = {
        "measure": measure.validation_prompts * (swept + 1) + measure.test_prompts * len(arms),
        "tune": tune.validation_prompts * (tune.candidates + 2) + tune.test_prompts * 3,
        "trial of a bundle": trial.test_prompts * (len(trial.gammas) + len(tune.temperatures) + 2),
    }
    tokens = [one.repeats * one.max_new_tokens * len(measure.settings) for one in (measure, tune, trial)]
    return found | {name: (count * each, 0) for (name, count), each in zip(decodes.items(), tokens, strict=True)}


def _lines(found: Sequence[Phase], disk: Mapping[str, int], devices: int) -> Iterator[str]:
    for name, model in found[0].models.items():
        count, dtype = sum(one.numel() for one in model.model.parameters()), str(model.dtype).removeprefix("torch.")
        yield f"{name}: {count:,} parameters in {dtype}, {model.context_limit} tokens of context"
    yield f"{'GB of memory':16}" + "".join(f"{part:>11}" for part in (*PARTS, "together"))
    for one in found:
        yield f"{one.name:16}" + "".join(f"{size / 1e9:11.3f}" for size in one.columns)
        if devices > 1:
            yield "  by device: " + ", ".join(f"{size / 1e9:.3f}" for size in one.on_devices(devices))
    models, held = found[0].models, found[0].held
    wide = sum((one.weights + one.cache) * 4 // models[name].dtype.itemsize for name, one in held.items())
    yield f"Greedy texts are compared in float32 where {wide / 1e9:.3f} GB more are free, else in the served format"
    sizes = ", ".join(f"{name} {size / 1e9:.3f}" for name, size in disk.items())
    yield f"GB on disk, and again in DVC's cache: {sizes}"


def _prompts(counts: Any, length: int, slice: str) -> list[Prompt]:
    return [
        Prompt(f"{split}/{number}", "", "", slice, split, "", [0] * length)
        for split in MEASURED_SPLITS
        for number in range(getattr(counts, split))
    ]


def _longest(one: Collector) -> int:
    return max(len(prompt.tokens) for _, prompt in one.jobs)


def _together(one: Collector) -> int:
    """Texts that are drawn at the same time."""
    most = max(1, MOST_ROWS // (_longest(one) + one.new_tokens))
    return min(one.config.prompts_per_shard, len(one.jobs), most)


def _kept(one: Collector) -> int:
    """Bytes of what the target said of texts that are drawn together, where that is kept."""
    if not one.keeps_said:
        return 0
    target = one.pair.target
    assert isinstance(target, CausalLanguageModel)
    numbers = target.vocabulary_size + len(one.layers) * hidden_size(target)
    return _together(one) * one.new_tokens * numbers * target.dtype.itemsize


def _blocks(model: CausalLanguageModel, size: int) -> list[int]:
    """``size`` bytes by what stays together: the model's embedding, its blocks, among which the rest is shared, and its head."""
    ends = [model.model.get_input_embeddings().weight, model.model.get_output_embeddings().weight]
    sizes = [end.nbytes for end in (ends[:1] if ends[0] is ends[1] else ends)]
    block, rest = divmod(size - sum(sizes), model.num_layers)
    return [sizes[0] + rest, *[block] * model.num_layers, *sizes[1:]]


def _filled(parts: Sequence[int], capacity: int) -> list[int]:
    """Sums of consecutive parts, each as large as ``capacity`` allows."""
    sums = [0]
    for part in parts:
        if sums[-1] + part > capacity:
            sums.append(0)
        sums[-1] += part
    return sums
