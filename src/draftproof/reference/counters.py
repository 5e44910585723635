"""What the engine counts: totals given out as snapshots, a record of each step, and the file these go to.

Nothing here measures but the clock of one step, which gives every nanosecond to exactly one of four parts,
those of the responses and the metrics. `total_ns` is read off the clock by itself: a reader can check that
nothing is missing between them.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from draftproof.core.clock import Clock
from draftproof.core.errors import UsageError
from draftproof.reference.types import RoundOutput


class StepDurations(msgspec.Struct, frozen=True, kw_only=True):
    """Where the wall time of one step went, ns."""

    draft_ns: int
    verify_ns: int
    sample_ns: int
    schedule_ns: int


class EngineStats(msgspec.Struct, kw_only=True):
    """Running totals that the engine's thread writes, and in a snapshot the gauges of its moment.

    Totals never fall; the gauges are `running`, `waiting` and the `kv_` fields.

    Draft-length policies: `policy_rounds` counts by policy the rounds of sequences that could draft,
    `paused_rounds` those it let draft nothing. Two more gauges: `draft_length`, the mean length decided in
    the latest round with such a sequence, and `draft_gains`, by method the latest estimate of throughput
    with drafts over throughput without; None and absent before there is one.

    Durations are sums over steps, ns; a step's four durations add up to its wall time.
    """

    running: int = 0
    waiting: int = 0
    kv_tokens: int = 0
    kv_bytes: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = msgspec.field(default_factory=Counter)
    steps: int = 0
    spec_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    fallbacks: int = 0
    policy_rounds: Counter[str] = msgspec.field(default_factory=Counter)
    paused_rounds: Counter[str] = msgspec.field(default_factory=Counter)
    draft_length: float | None = None
    draft_gains: dict[str, float] = {}
    draft_ns: int = 0
    verify_ns: int = 0
    sample_ns: int = 0
    schedule_ns: int = 0

    def count_step(self, durations: StepDurations, prefill_tokens: int) -> None:
        """Add one step of the engine."""
        for name, value_ns in msgspec.structs.asdict(durations).items():
            setattr(self, name, getattr(self, name) + value_ns)
        self.steps += 1
        self.prompt_tokens += prefill_tokens

    def count_lengths(self, lengths: Sequence[tuple[str, int]]) -> None:
        """Add the draft lengths decided in a round, each with its policy."""
        for policy, length in lengths:
            self.policy_rounds[policy] += 1
            self.paused_rounds[policy] += not length
        if lengths:
            self.draft_length = sum(length for _, length in lengths) / len(lengths)

    def count_outputs(self, outputs: Iterable[RoundOutput]) -> None:
        """Add what a step delivered."""
        for output in outputs:
            self.generation_tokens += len(output.token_ids)
            if output.round is not None and output.round.proposed:
                self.spec_steps += 1
                self.draft_tokens += output.round.proposed
                self.accepted_tokens += output.round.accepted

    def snapshot(self, **gauges: int) -> "EngineStats":
        """Return a copy with the given gauges."""
        copied = {
            name: getattr(self, name).copy()
            for name in ("finished", "policy_rounds", "paused_rounds", "draft_gains")
        }
        return msgspec.structs.replace(self, **copied, **gauges)


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

    `path`: created if it is not there; an existing file is continued. Raises UsageError: it cannot be opened.
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


class LapTimer:
    """Runs from its making; each lap belongs to the part that it is called with. `clock`: monotonic ns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.start_ns = self._last_ns = clock()
        self._totals = dict.fromkeys(("draft", "verify", "sample", "schedule"), 0)

    def lap(self, part: str) -> None:
        """End a lap: draft, verify, sample or schedule."""
        now_ns = self._clock()
        self._totals[part] += now_ns - self._last_ns
        self._last_ns = now_ns

    def durations(self) -> StepDurations:
        """Return the sums up to the last lap."""
        return StepDurations(**{f"{part}_ns": total for part, total in self._totals.items()})
