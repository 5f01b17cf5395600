"""Recorded texts of a pair (traces ``texts``) to time arms along, and the same of texts that only a timed decode has."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.applicability import absent
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.prompt_table import Prompt
from predictors.replay.text import RecordedText, RootStates
from predictors.sampling import SamplingSettings
from predictors.training.text_table import ROOT, STATES, TextTable
from runtime import ModelPair, Randomness
from runtime.identity import require_pair
from trace_collection.text_tracer import TextTracer


class RecordedTexts:
    """Of the text traces in ``folder``, cut to ``max_new_tokens``; where there is none, nothing is recorded."""

    def __init__(self, folder: Path | None, max_new_tokens: int) -> None:
        self.max_new_tokens = max_new_tokens
        self.table = None if folder is None or not folder.is_dir() or absent(folder) else TextTable.read(folder)

    @property
    def sha256(self) -> str | None:
        """Of their content."""
        return None if self.table is None else self.table.manifest.content_hash

    def require(self, pair: ModelPair) -> None:
        """`ContractError` unless they were recorded for ``pair``."""
        if self.table is not None:
            require_pair(
                self.table.manifest.capture_contract("traces texts").identity, pair, "the table of recorded texts"
            )

    def of(self, split: str) -> list[RecordedText]:
        """The texts of a split that fit the budget."""
        if self.table is None or split not in self.table.column("split"):
            return []
        cut = (text.within(self.max_new_tokens) for text in self.table.rows(split).texts())
        return [text for text in cut if text is not None]

    def tokens(self, prompt: str, settings: SamplingSettings) -> list[int] | None:
        """The recorded text of a prompt at a sampling setting."""
        return self._tokens.get((prompt, settings))

    def first(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Prompts that are recorded first, else in their order."""
        known = {prompt for prompt, _ in self._tokens}
        return sorted(prompts, key=lambda prompt: prompt.id not in known)

    @cached_property
    def _tokens(self) -> dict[tuple[str, SamplingSettings], list[int]]:
        texts = (text for split in (VALIDATION, TEST) for text in self.of(split))
        return {(text.prompt_id, text.settings): text.tokens for text in texts}


class Recorder:
    """Records the texts of timed decodes of ``prompts`` as far as ``texts`` are; they were decoded by ``pair``."""

    def __init__(self, pair: ModelPair, texts: RecordedTexts, prompts: Iterable[Prompt]) -> None:
        assert texts.table is not None
        self._pair, self._texts, self._manifest = pair, texts, texts.table.manifest
        self._prompts = {prompt.id: prompt for prompt in prompts}

    @cached_property
    def _tracer(self) -> TextTracer:
        """Made when a text is to be recorded, as it takes the recorded states to be known."""
        manifest, table = self._manifest, self._texts.table
        assert table is not None
        layers, slots = tuple(manifest.feature_layers), table.slots(STATES).shape[1]
        budget, spec = self._texts.max_new_tokens, manifest.stop_spec
        return TextTracer(self._pair, manifest.gamma_max, budget, manifest.candidates, layers, spec, slots)

    def __call__(self, row: Mapping[str, Any]) -> RecordedText | None:
        """The text of a decode's ``row``; ``None`` for one of a single token, which has no rounds, and of an unknown prompt."""
        prompt = self._prompts.get(row["prompt"])
        if prompt is None:
            return None
        tracer, settings = self._tracer, SamplingSettings(row["temperature"], row["top_k"], row["top_p"])
        rows = tracer.trace(prompt.tokens, list(row["output"]), settings, Randomness(row["seed"]))
        if not rows:
            return None
        columns = dict(rows)
        roots = RootStates(columns.pop(ROOT), tracer.layers, self._manifest.hidden_size)
        where = prompt.id, prompt.document, prompt.slice, settings, len(prompt.tokens), tracer.budget
        return RecordedText(*where, columns, frozenset(self._manifest.eos_tokens), roots, tracer.spec.draft_layers)
