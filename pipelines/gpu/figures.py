"""Decodes of a device, and figures of its report: from their rows, the latency profile and the device's limits.

Below the device's folder lies a folder for each pair, in that a log for each part (`Bench.race`).

    prediction  every pass and all work outside passes as timed alone on this device (`predictors.latency`), in the rounds that
                were really run: time only, as acceptance is each arm's own; both jobs of a branch stage count as if each had
                the device to itself
    ceiling     the same rounds at no cost but the passes' least seconds (`pipelines.gpu.ceilings`)

Measured over predicted tokens per second is Σ predicted seconds / Σ measured seconds, and likewise of the ceiling.

On one device whose passes wait for memory, two models at once share the bandwidth: what a branch stage can save there is the
difference between prediction and measurement.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from pipelines.gpu.bench import STATIC, Result
from pipelines.gpu.ceilings import Ceilings
from pipelines.gpu.pairs import Sized
from pipelines.measuring.harness import BY_ROUND, apart
from pipelines.measuring.measurement_log import Rows, logged_rows
from pipelines.measuring.names import PLAIN, branch_arm
from pipelines.reporting.comparison import rate_ratio
from predictors.latency.branching import BranchCosts
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import chain_latency
from predictors.rounds import PHASES, ReplayedRound

Row = Mapping[str, Any]
OF_BRANCHES = ("context", "submitted", "idle_levels", "levels", "drafted", "candidates", "law_known", "accepted")


def read_rows(folder: Path, results: Mapping[str, Any]) -> Rows:
    """Rows of all parts, each with its ``pair``, its part in front of its block's name; those timed with other code, settings or
    weights than ``results`` are left out. `ValueError` if parts of ``results`` have no rows."""
    rows: Rows = []
    for path in sorted(folder.glob("*/*.jsonl")):
        own = logged_rows(path, results["fingerprint"])
        rows += [{"pair": path.parent.name, **row, "block": f"{path.stem}/{row['block']}"} for row in own]
    timed = {(row["block"].split("/")[0], row["pair"]) for row in rows}
    for name in results["parts"]:
        if name.startswith(("plain/", "methods/")) and tuple(name.split("/")) not in timed:
            raise ValueError(f"{folder} holds no decodes of part {name}: keep it next to its JSON, or measure again.")
    return rows


def part_of(rows: Rows, part: str, pair: str | None = None) -> Rows:
    """Rows of a part, of all pairs or of one."""
    return [row for row in rows if row["block"].split("/")[0] == part and pair in (None, row["pair"])]


def write_tables(folder: Path, rows: Rows) -> None:
    """For each pair the tables that stage ``measure`` writes, where pyarrow is installed."""
    if find_spec("pyarrow") is None:
        return
    from pipelines.measuring.tables import write_timed

    for pair in dict.fromkeys(row["pair"] for row in rows):
        write_timed(folder / pair, pair, *apart([row for row in rows if row["pair"] == pair]))


def speeds(rows: Rows) -> list[Result]:
    """By temperature and arm, plain decoding first: tokens per second, as a multiple of plain decoding's in the same blocks with
    its interval over documents, and the rows."""
    plain = {row["block"]: row for row in rows if row["arm"] == PLAIN}
    found: list[Result] = []
    arms = {(row["temperature"], row["arm"]) for row in rows}
    for temperature, arm in sorted(arms, key=lambda key: (key[0], key[1] != PLAIN, key[1])):
        own = [row for row in rows if (row["temperature"], row["arm"]) == (temperature, arm)]
        sides = own, [plain[row["block"]] for row in own]
        tokens, seconds, *base = ([row[name] for row in side] for side in sides for name in ("tokens", "seconds"))
        ratio = rate_ratio([row["document"] for row in own], tokens, seconds, *base)
        speed = {"tokens_per_second": sum(tokens) / sum(seconds), "of_plain": ratio}
        found.append({"arm": arm, "temperature": temperature, "rows": own, **speed})
    return found


def plain_figures(part: Result, rows: Rows, ceilings: Ceilings) -> Result:
    """Of the target alone, to ``part``: median seconds of a token after the first, the least seconds of its pass, and shares."""
    prefills = [sum(row[BY_ROUND][0][f"seconds_{phase}"] for phase in PHASES) for row in rows]
    taken = zip(rows, prefills, strict=True)
    token = median((row["seconds"] - prefill) / (row["tokens"] - 1) for row, prefill in taken)
    bound = ceilings.pass_seconds(Sized.from_record(part["target"]), 1, part["context"])
    shares = {"share_of_bound": bound / token, "outside_passes": 1 - part["pass_seconds"] / token}
    return part | {"bound_seconds": bound, "token_seconds": token, **shares}


def pair_figures(part: Result, rows: Rows, ceilings: Ceilings) -> Result:
    """Of one pair, to ``part`` the speeds of its arms: of those that the latency model covers with prediction and ceiling of the
    same rounds in tokens per second, and joules per token where they were counted."""
    profile = LatencyProfile.from_record(part["profile"], "profile")
    target, draft = (Sized.from_record(part[name]) for name in ("target", "draft"))
    found = speeds(rows)
    for speed in found:
        own = speed["rows"]
        if own[0]["family"] in STATIC:
            tokens = sum(row["tokens"] for row in own)
            speed["predicted"] = tokens / sum(predicted_seconds(row, profile) for row in own)
            speed["ceiling"] = tokens / sum(ceilings.rounds_seconds(target, draft, row) for row in own)
        if speed["temperature"] == 0:
            speed["joules"] = part["energy"].get(speed["arm"])
    return part | {"speeds": found}


def predicted_seconds(run: Row, profile: LatencyProfile) -> float:
    """Seconds of one measured decode by the profile, from what its rounds (`BY_ROUND`) were made of."""
    rounds, tokens = run[BY_ROUND], run["prompt_tokens"]
    sampled = run["temperature"] > 0
    if branch_arm(run["arm"]) is not None and any(row["candidates"] for row in rounds):
        made = branch_rounds(rounds)
        return BranchCosts(profile, sampled).request(made, tokens)
    total = profile.latency("target_prefill", tokens=tokens)  # plain decoding and chains: one phase after the other
    if run["arm"] != PLAIN:
        total += profile.latency("draft_prefill", tokens=tokens)
    for row in rounds:
        if not row["prefill"]:
            total += chain_latency(profile, row["submitted"], row["context"], sampled)
    return float(total.seconds)


def branch_rounds(rounds: Iterable[Row]) -> list[ReplayedRound]:
    """The rounds of a run of a branch-parallel arm, as the latency model reads them."""
    hit = False  # whether the round before kept a branch
    made = []
    for row in rounds:
        if row["prefill"]:
            continue
        made.append(ReplayedRound(**{name: row[name] for name in OF_BRANCHES}, survived=hit))
        hit = not row["ends_segment"]
    return made


def shares_of_a_step(profile: LatencyProfile) -> Iterator[tuple[str, float, float]]:
    """Aim, largest share and share of verification, of all work outside passes, and of a decision, in a round of a chain."""
    drafted = 4
    context = profile.table("target").axes["context"][0]
    passes = drafted * profile.latency("draft", rows=1, context=context).seconds
    passes += profile.latency("target", tokens=1 + drafted, context=context).seconds
    verdict = profile.latency("chain_verification", drafted=drafted, sampled=1).seconds
    outside = verdict + profile.latency("chain_drawing", drafted=drafted, sampled=1).seconds
    decision = profile.latency("predictor", features=profile.table("predictor").axes["features"][0]).seconds
    whole = passes + outside
    yield "verification, at most 1 % of a round of a chain of 4", 0.01, verdict / whole
    yield "all work outside passes, at most 3 % of it", 0.03, outside / whole
    yield "a decision of the predictor, at most 0.5 % of it", 0.005, decision / whole
