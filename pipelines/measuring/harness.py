"""The one clock: arms decode prompts, interleaved and paired, and every decode becomes a row.

A *block* is one prompt at one sampling setting and one repeat: its arms decode one after the other, in an order drawn from the
seed. All draw with one seed, which no arm's name enters.
"""

import hashlib
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter, thread_time

import torch

from pipelines.measuring.arms import ArmRun, Decode, TimedArm
from pipelines.measuring.bench import Blocks
from pipelines.measuring.tables import Rows, measured, rounds_of
from pipelines.prompt_table import Prompt
from predictors.sampling import SAMPLING, SamplingSettings
from runtime.graphs import CudaGraphs

RETRIES = 3  # of a decode that recorded programs, or was disturbed
# The share of a decode's time that other processes took. Two cores of an Intel Xeon: quiet up to .03, with one other
# process .12 to .49.
DISTURBED = 0.05
WAIT = "wait"  # the phase in which a draft in another process is waited for
BY_ROUND = "by_round"
OF_DECODE = ("arm", "split", "prompt", *SAMPLING, "repeat", "block")  # and of its rounds
Planned = Iterable[tuple[Prompt, Sequence[TimedArm]]]


@dataclass
class Harness:
    """Times arms at ``settings``, each decode ``repeats`` times, in kept ``blocks``."""

    blocks: Blocks
    settings: Sequence[SamplingSettings]
    seed: int = 0
    repeats: int = 1

    def warm_up(self, arms: Mapping[str, TimedArm], prompt: Prompt) -> None:
        """A few unrecorded tokens of every arm, at the last of the settings that it is timed at."""
        for name, arm in arms.items():
            self.blocks.bar.set_postfix_str(f"warm-up {name}")
            for settings in [one for one in self.settings if arm.at(one.temperature)][-1:]:
                arm.warm_up(prompt.tokens, settings)

    def race(self, arms: Mapping[str, TimedArm], prompts: Sequence[Prompt]) -> Rows:
        """Every arm on every prompt after a warm-up, as `time` has it."""
        if not prompts:
            return Rows()
        self.warm_up(arms, prompts[0])
        return self.time([(prompt, list(arms.values())) for prompt in prompts])

    def time(self, planned: Planned) -> Rows:
        """A row for each decode, with its rounds under ``by_round`` (`apart`)."""
        plans = {prompt.id: (prompt, arms) for prompt, arms in planned}
        decodes = sum(arm.at(one.temperature) for _, arms in plans.values() for arm in arms for one in self.settings)
        self.blocks.planned(decodes * self.repeats)
        rows = Rows()
        for prompt in [prompt for prompt, _ in plans.values()]:
            for settings in self.settings:
                arms = [arm for arm in plans[prompt.id][1] if arm.at(settings.temperature)]
                for repeat in range(self.repeats):
                    block = f"{prompt.split}/{prompt.id}/{settings.name}/{repeat}"
                    made = partial(self._decodes, block, prompt, settings, repeat, arms)
                    rows += self.blocks.once(block, len(arms), made)
        return rows

    def _decodes(
        self, block: str, prompt: Prompt, settings: SamplingSettings, repeat: int, arms: Sequence[TimedArm]
    ) -> Rows:
        text = f"{self.seed}/{prompt.id}/{settings.name}"  # repeats go over the same text
        seed = seed_of(text)
        where = {"split": prompt.split, **asdict(settings), "repeat": repeat, "block": block, "seed": seed}
        where |= {"prompt": prompt.id, "document": prompt.document, "slice": prompt.slice}
        where["prompt_tokens"] = len(prompt.tokens)
        rows = []
        for order, arm in enumerate(random.Random(f"{text}/{repeat}").sample(list(arms), len(arms))):
            self.blocks.bar.set_postfix_str(f"{prompt.split}, {settings.name}, {arm.name}")
            who = {"arm": arm.name, "family": arm.family, "verifier": arm.verifier, "order": order}
            run, seconds = timed(partial(arm.run, prompt.tokens, settings, seed))
            took = measured(run, seconds)
            rows.append({**where, **who, **took, BY_ROUND: rounds_of(run, len(prompt.tokens))})
            self.blocks.bar.update()
        return rows


def seed_of(key: str) -> int:
    """A seed that follows from ``key`` alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")


def timed(decode: Decode) -> tuple[ArmRun, float]:
    """One decode and the seconds until its last work on an accelerator is done; of up to `RETRIES` more where it recorded
    programs, as recording takes far longer than running, or was disturbed, the least disturbed one. Which one counts is said by
    `idle`, never by how long it took."""
    found: list[tuple[float, float, ArmRun]] = []
    for _ in range(1 + RETRIES):
        made, worked, start = CudaGraphs.made, thread_time(), perf_counter()
        run = decode()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds, worked = perf_counter() - start, thread_time() - worked
        if CudaGraphs.made == made:
            found.append((idle(run, seconds, worked), seconds, run))
            if found[-1][0] <= DISTURBED:
                break
    if not found:
        warnings.warn(f"a decode recorded programs {1 + RETRIES} times: its {seconds:.3f} s hold one", stacklevel=2)
        return run, seconds
    if len(found) > 1:
        warnings.warn("decodes were timed again where other processes took the processor", stacklevel=2)
    _, seconds, run = min(found, key=lambda one: one[0])
    return run, seconds


def idle(run: ArmRun, seconds: float, worked: float) -> float:
    """The share of ``seconds`` in which the decoding thread did not work: others had the processor. 0 where an accelerator is
    waited for, or a draft in another process, as the two share the processor."""
    if torch.cuda.is_initialized() or any(WAIT in record.seconds for record in run.rounds or ()):
        return 0.0
    return max(0.0, seconds - worked) / seconds


def apart(rows: Rows) -> tuple[Rows, Rows]:
    """Rows of decodes and rows of rounds, as their tables hold them."""
    decodes = [{name: value for name, value in row.items() if name != BY_ROUND} for row in rows]
    rounds = [{name: row[name] for name in OF_DECODE} | one for row in rows for one in row[BY_ROUND]]
    return decodes, rounds


def tokens_per_second(rows: Rows, arm: str, temperature: float, **filters: float) -> float:
    """Total tokens over total seconds of an arm; NaN where it was not timed. ``filters``: ``top_k`` and ``top_p``."""
    wanted = {"arm": arm, "temperature": temperature, **filters}
    runs = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    seconds = sum(row["seconds"] for row in runs)
    return sum(row["tokens"] for row in runs) / seconds if seconds else float("nan")
