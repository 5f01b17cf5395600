"""What became of a call in another process, in a form that always arrives."""

import pickle
import traceback
import warnings
from typing import Any, NamedTuple

from runtime.overlap.executor import Reply

LONGEST_TRACE = 1500  # characters of a traceback's end
LONGEST_TEXT = 500  # characters of the text of an error that cannot travel itself


class Outcome(NamedTuple):
    """``value``, or the ``error`` raised instead with its ``trace``; ``warned`` as (text, category, file, line)."""

    value: Any
    error: Exception | None
    trace: str
    started: float
    ended: float
    warned: list[tuple[str, type[Warning], str, int]]

    def reply(self, seen: dict[Any, Any]) -> Reply:
        """Warn and raise here what was warned and raised there; ``seen`` is a warning registry, for filters that warn once."""
        for text, category, file, line in self.warned:
            warnings.warn_explicit(text, category, file, line, registry=seen)
        if self.error is not None:
            self.error.add_note(f"In the draft process:\n{self.trace}")
            raise self.error
        return Reply(self.value, self.started, self.ended)

    def without_value(self, refusal: Exception) -> "Outcome":
        """What is sent instead where sending raised ``refusal``: small, and sure to be pickled."""
        error = self.error or refusal
        text = f"{type(error).__name__}: {error}" if self.error else str(error)
        substitute = RuntimeError if self.error else ValueError
        return self._replace(value=None, error=substitute(text[:LONGEST_TEXT]), warned=[])


def failure(error: Exception) -> tuple[Exception, str]:
    """``error``, or a `RuntimeError` with its text where it would not survive pickling, and the end of its traceback."""
    trace = "".join(traceback.format_exception(error))[-LONGEST_TRACE:]
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class's constructor raises: many cannot be called with `args`
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return error, trace
