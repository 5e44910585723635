"""One record for each step of the engine, and the file they go to.

The four parts are those of the responses and the metrics; `total_ns` is read off the clock by itself, so that
a reader can check that nothing is missing between them.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from draftproof.errors import UsageError

_logger = logging.getLogger(__name__)


class SequenceTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What a step did for one sequence.

    `prefill_tokens` is the prompt chunk it brought, 0 in a decode round; the other fields are those of
    `RoundStats`, and `committed` counts the first token at the end of a prompt too.
    """

    request_id: str
    prefill_tokens: int
    proposed: int
    accepted: int
    committed: int
    draft_limit: int | None


class StepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the engine.

    `step` counts from 1 in each process and `start_ns` is that process's monotonic clock. `gap_ns` is the
    time since the step before, None where that left nothing to do and the engine waited. `rows` are tokens of
    the forward pass; `running`, `waiting` and `cache_bytes` are what the step left behind.
    """

    step: int
    start_ns: int
    gap_ns: int | None
    draft_ns: int
    verify_ns: int
    sample_ns: int
    schedule_ns: int
    total_ns: int
    rows: int
    prefill_tokens: int
    running: int
    waiting: int
    cache_bytes: int
    sequences: Sequence[SequenceTrace]


Tracer = Callable[[StepTrace], None]


class TraceFile:
    """Appends records to a file, a JSON object a line, each written at once.

    Args:
        path: created if it is not there; an existing file is continued.

    Raises:
        UsageError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as fault:
            raise UsageError(
                f"the trace cannot be written: {fault.strerror}",
                place=str(path),
                fix="name a file in a folder you may write to with --trace",
            ) from fault

    def __call__(self, step: StepTrace) -> None:
        """Write one record; at the first that does not fit on the disk tracing ends, and serving goes on."""
        if self._file.closed:
            return
        line = msgspec.json.encode(step) + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError("a line was cut")  # noqa: TRY301 - one way to end
        except OSError as fault:
            _logger.warning("%s: tracing ends here: %s", self._path, fault.strerror or fault)
            self.close()

    def close(self) -> None:
        """End tracing; calling it again does nothing."""
        with contextlib.suppress(OSError):
            self._file.close()
