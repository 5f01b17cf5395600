"""Recorded texts of a pair (traces ``texts``) to time arms along."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from pipelines.applicability import absent
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.prompt_table import Prompt
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from predictors.training.text_table import TextTable
from runtime import ModelPair
from runtime.identity import require_pair


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
