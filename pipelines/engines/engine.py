"""An engine as a process, and engines in turn: one works at a time, on a block of prompts.

An engine lives from its start to the end. It says a line of JSON when it is ready (``versions``, ``format`` of its weights), and
answers lines like the first by ones like the second:

    {"arm": "plain", "prompts": [[1, 2], …], "new_tokens": 48}
    {"decodes": [{"tokens": […], "emitted": […], "first": 0.2, "seconds": 1.1}, …]}

Of every prompt these are the new tokens (as many as asked for, whatever ends a text), how many of them each pass of the target
gave, and the seconds to the first and to the last one. ``counters`` may hold lists of what the engine itself counted meanwhile.
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
from typing import Any

from pipelines.measuring.tables import Rows
from pipelines.prompt_table import Prompt

ROOT = Path(__file__).parents[2]


class EngineError(RuntimeError):
    """An engine did not start, died, was too slow or answered something else than what was asked for."""


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

    def decode(self, arm: str, prompts: Sequence[Prompt], new_tokens: int) -> Rows:
        """A row for each prompt."""
        asked = {"arm": arm, "prompts": [prompt.tokens for prompt in prompts], "new_tokens": new_tokens}
        try:
            print(json.dumps(asked), file=self.process.stdin, flush=True)
        except OSError as error:
            raise EngineError(self._end()) from error
        answer = self._answer()
        for one in answer["decodes"]:
            if not len(one["tokens"]) == sum(one["emitted"]) == new_tokens:
                raise EngineError(
                    f"gave {len(one['tokens'])} tokens and counted {sum(one['emitted'])}, not {new_tokens}"
                )
        for name, counted in answer.get("counters", {}).items():
            before = self.counters.get(name, ())
            self.counters[name] = [sum(pair) for pair in zip_longest(before, counted, fillvalue=0)]
        who = [{"arm": f"{self.name}: {arm}", "prompt": prompt.id, "document": prompt.document} for prompt in prompts]
        return [prompt | made for prompt, made in zip(who, answer["decodes"], strict=True)]

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


def race(
    engines: Sequence[Engine], prompts: Sequence[Prompt], new_tokens: int, size: int, threads: int
) -> tuple[Rows, dict[str, str]]:
    """Rows of all arms on blocks of ``size`` prompts, each block in another order, and by arm why it gave none or no more.

    Before the blocks every arm decodes the first prompt unrecorded."""
    arms = {f"{engine.name}: {arm}": (engine, arm) for engine in engines for arm in engine.arms}
    failed: dict[str, str] = {}

    def decode(name: str, some: Sequence[Prompt]) -> Rows:
        engine, arm = arms[name]
        try:
            return [] if name in failed else engine.decode(arm, some, new_tokens)
        except EngineError as error:
            failed[name] = str(error)
            return []

    rows: Rows = []
    try:
        for engine in engines:  # one after the other, as some compile
            try:
                engine.start(threads)
            except EngineError as error:
                failed |= {f"{engine.name}: {arm}": str(error) for arm in engine.arms}
        for name in arms:
            decode(name, prompts[:1])
        for engine in engines:
            engine.counters.clear()
        for start in range(0, len(prompts), size):
            for name in Random(start).sample(list(arms), len(arms)):
                rows += decode(name, prompts[start : start + size])
            print(f"{min(start + size, len(prompts))} of {len(prompts)} prompts", flush=True)
    finally:
        for engine in engines:
            engine.stop()
    return rows, failed
