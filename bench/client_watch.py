"""CPU time of a client and all its children over time, and what the server of known timing says it wrote."""

import threading
from collections.abc import Sequence
from statistics import fmean
from typing import Self

import numpy as np
import psutil

from draftproof.core.clock import monotonic_ns
from draftproof.judge.metrics.client_error import TrueAnswer
from draftproof.judge.metrics.service import percentile

_INTERVAL_S = 0.2
NS_PER_MS = 1e6


class CpuWatch:
    """Notes the CPU seconds of a process and its descendants, ended ones included, while entered."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._known: dict[int, float] = {}
        self._series: list[tuple[int, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def used_s(self, start_ns: int, end_ns: int) -> float | None:
        """Return the CPU seconds between two times, None where nothing was noted."""
        if len(self._series) < 2:
            return None
        times, used = zip(*self._series, strict=True)
        before, after = np.interp([start_ns, end_ns], times, used)
        return float(after - before)

    def _watch(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            for one in family:
                try:
                    times = one.cpu_times()
                except psutil.Error:
                    continue
                self._known[one.pid] = times.user + times.system
            self._series.append((monotonic_ns(), sum(self._known.values())))


def keep_last(truth: Sequence[TrueAnswer], requests: int, chunks: int) -> list[TrueAnswer]:
    """Return the whole answers to the counted requests: those before them were a tool's own warm-up."""
    whole = [answer for answer in truth if len(answer.written_ns) == chunks]
    return sorted(whole, key=lambda answer: answer.received_ns)[-requests:]


def describe_truth(answers: Sequence[TrueAnswer]) -> dict[str, float | None]:
    """Return the same quantities that the tools report, of what the server wrote; times in ms."""
    ttft = [answer.written_ns[0] - answer.received_ns for answer in answers]
    gaps = [gap for answer in answers for gap in np.diff(answer.written_ns).tolist()]
    tpot = [found for answer in answers if (found := _tpot_ns(answer)) is not None]
    return {
        "ttft_ms_p50": _ms(ttft, 0.50),
        "ttft_ms_p99": _ms(ttft, 0.99),
        "gap_ms_p50": _ms(gaps, 0.50),
        "gap_ms_p99": _ms(gaps, 0.99),
        "tpot_ms_p50": _ms(tpot, 0.50),
        "tokens_per_request": fmean(answer.cumulative_tokens[-1] for answer in answers) if answers else None,
    }


def window_of(answers: Sequence[TrueAnswer]) -> tuple[int, int]:
    """Return when the first request came and when the last chunk was written."""
    return min(one.received_ns for one in answers), max(one.written_ns[-1] for one in answers)


def _tpot_ns(answer: TrueAnswer) -> float | None:
    tokens = answer.cumulative_tokens[-1] - answer.cumulative_tokens[0]
    return (answer.written_ns[-1] - answer.written_ns[0]) / tokens if tokens else None


def _ms(values_ns: Sequence[float], share: float) -> float | None:
    found = percentile(values_ns, share)
    return None if found is None else found / NS_PER_MS
