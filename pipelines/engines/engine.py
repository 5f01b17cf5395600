"""An engine as a process, and engines in turn: one works at a time, on a block of prompts.

An engine lives from its start to the end. It says a line of JSON when it is ready (``versions``, ``format`` of its weights), and
answers lines like the first by ones like the second:

    {"arm": "plain", "prompts": [[1, 2], …], "new_tokens": [48, …], "batch": 1}
    {"decodes": [{"tokens": […], "emitted": […], "first": 0.2, "seconds": 1.1}, …]}

Of every prompt these are the new tokens (as many as asked for, whatever ends a text), how many of them each pass of the target
gave, and the seconds to the first and to the last one. ``counters`` may hold lists of what the engine itself counted meanwhile.
vLLM decodes ``batch`` prompts at once, all timed from one start, and its ``steps`` hold seconds and requests of every step.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from threading import Timer
from time import monotonic
from typing import Any, NamedTuple

from tqdm import tqdm

from pipelines.measuring.tables import Rows
from pipelines.prompt_table import Prompt

ROOT, VLLM = Path(__file__).parents[2], "vLLM"
STARTS = 0.6  # share of the time
LATE = "not started in time (another run starts sooner, by what this one compiled)"


class EngineError(RuntimeError):
    """An engine did not start, died, was too slow or answered something else than what was asked for."""


class Block(NamedTuple):
    """Prompts that every arm decodes in one go, ``batch`` at once, for so many ``new_tokens``; a ``turn``'s blocks share some."""

    prompts: Sequence[Prompt]
    new_tokens: Sequence[int]
    batch: int = 1
    turn: int = 0


@dataclass
class Engine:
    """The process of ``command``, which decodes ``arms``; it is ended where an answer takes more than ``patience`` seconds."""

    name: str
    arms: Sequence[str]
    command: Sequence[str]
    patience: float = 900.0
    facts: dict[str, Any] = field(default_factory=dict)  # what it said when it was ready
    counters: dict[str, list[float]] = field(default_factory=dict)

    def start(self, threads: int) -> None:
        """Begin, and wait until it is ready."""
        self.log = TemporaryFile("w+")  # noqa: SIM115
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log, "text": True}
        try:
            self.process = subprocess.Popen(self.command, env=environment, cwd=ROOT, **pipes)
        except OSError as error:
            raise EngineError(f"not installed: {Path(self.command[0]).name}: {error.strerror}") from error
        self.facts = self._answer()

    def decode(self, arm: str, block: Block) -> Rows:
        """A row for each prompt, of which the first has the ``steps``."""
        prompts, wanted, batch, _ = block
        asked = {"arm": arm, "prompts": [prompt.tokens for prompt in prompts], "new_tokens": wanted, "batch": batch}
        try:
            print(json.dumps(asked), file=self.process.stdin, flush=True)
        except OSError as error:
            raise EngineError(self._end()) from error
        answer = self._answer()
        for one, count in zip(answer["decodes"], wanted, strict=True):
            if not len(one["tokens"]) == sum(one["emitted"]) == count:
                raise EngineError(f"gave {len(one['tokens'])} tokens and counted {sum(one['emitted'])}, not {count}")
        answer["decodes"][0]["steps"] = answer.get("steps")
        for name, counted in answer.get("counters", {}).items():
            before = self.counters.get(name, ())
            self.counters[name] = [sum(pair) for pair in zip_longest(before, counted, fillvalue=0)]
        who = [{"prompt": prompt.id, "document": prompt.document, "split": prompt.split} for prompt in prompts]
        named = {"arm": f"{self.name}: {arm}", "batch": batch, "turn": block.turn}
        return [named | prompt | made for prompt, made in zip(who, answer["decodes"], strict=True)]

    def stop(self) -> None:
        """End it, if it runs."""
        if hasattr(self, "process"):
            self.process.kill()
            self.process.communicate()
            self.log.close()

    def _answer(self) -> dict[str, Any]:
        watch = Timer(self.patience, self.process.kill)
        watch.start()
        line = self.process.stdout.readline() if self.process.stdout else ""
        watch.cancel()
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise EngineError(f"said {line.strip()[:100]!r}, no answer" if line else self._end()) from error
        return answer

    def _end(self) -> str:
        """How it ended, with the last that it said."""
        code = self.process.wait()
        self.log.seek(0)
        last = next((line.strip() for line in reversed(self.log.readlines()) if line.strip()), "no message")
        return f"ended with code {code}: {last[:300]}"


def vllm(arm: str, environment: Path, **options: Any) -> Engine:
    """vLLM with one arm, as what it drafts with belongs to a process there; ``options``: those of `vllm_cpu.py`."""
    program = (str(environment.resolve() / "bin/python"), str(ROOT / "pipelines/engines/vllm_cpu.py"))
    return Engine(VLLM, [arm], (*program, json.dumps(options)))


def race(
    engines: Sequence[Engine], blocks: Sequence[Block], threads: int, minutes: float = 1e6
) -> tuple[Rows, dict[str, str]]:
    """Rows of all arms on ``blocks``, each in another order, and by arm why it gave none or no more. After so many ``minutes``,
    or where it is interrupted, it ends with what is done. Starts have `STARTS` of them: what is not ready then is left out.

    Before the blocks every arm decodes some prompts unrecorded, as many as any block at once."""
    end, started = (monotonic() + 60 * minutes * share for share in (1, STARTS))
    arms = {f"{engine.name}: {arm}": (engine, arm) for engine in engines for arm in engine.arms}
    failed: dict[str, str] = {}

    def decode(name: str, block: Block) -> Rows:
        engine, arm = arms[name]
        engine.patience = min(engine.patience, end - monotonic())
        try:
            return [] if name in failed or engine.patience < 0 else engine.decode(arm, block)
        except EngineError as error:
            failed.update({name: str(error)} if monotonic() < end else {})
            return []

    rows: Rows = []
    try:
        for engine in tqdm(engines, desc="start", unit="engine"):  # one after the other, as some compile
            patience, engine.patience = engine.patience, max(0.0, min(engine.patience, started - monotonic()))
            try:
                engine.start(threads)
            except EngineError as error:
                why = f"{LATE}: {error}" if monotonic() >= started else str(error)
                failed |= {f"{engine.name}: {arm}": why for arm in engine.arms}
            engine.patience = patience
        widest = max(blocks, key=lambda block: block.batch)
        for name in arms:
            decode(name, Block(widest.prompts[: widest.batch], widest.new_tokens[: widest.batch], widest.batch))
        for engine in engines:
            engine.counters.clear()
        for number, block in enumerate(tqdm(blocks, desc="measure", unit="block")):
            for name in Random(number).sample(list(arms), len(arms)):
                rows += [row | {"block": number} for row in decode(name, block)]
    except KeyboardInterrupt:
        if not rows:
            raise
    finally:
        for engine in engines:
            engine.stop()
    return rows, failed
