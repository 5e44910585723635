"""The server's numbers in Prometheus text: vLLM's names where the quantity is the same, prefix `draftproof:`.

Pure but for the reading of the process's own memory. Counters of requests live here, counters of the
engine come from its snapshot.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from draftproof.core.clock import NS_PER_S
from draftproof.reference.counters import EngineStats
from draftproof.reference.http.answer import Answer
from draftproof.reference.types import RoundOutput

PREFIX = "draftproof:"
Values = float | Mapping[str, float]  # one, or one for each value of a label
_TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0),
)
_TPOT_BOUNDS_S = (
    *(0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 1.0),
)


class Histogram:
    """Counts of observations up to each bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """Return (upper bound, observations up to it) for every bound, and the sum of all observations."""
        labels, running, buckets = [*map(str, self._bounds), "+Inf"], 0, []
        for label, count in zip(labels, self._counts, strict=True):
            running += count
            buckets.append((label, float(running)))
        return buckets, self._sum


class RequestCounters:
    """What the server has seen of its requests since it started."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.accepted_per_position: Counter[int] = Counter()
        self.fallbacks = 0
        self.finished: Counter[str] = Counter()
        self.rejected = 0
        self.time_to_first_token = Histogram(_TTFT_BOUNDS_S)
        self.time_per_output_token = Histogram(_TPOT_BOUNDS_S)

    def observe_round(self, output: RoundOutput) -> None:
        """Count what one round delivered to one request."""
        self.generation_tokens += len(output.token_ids)
        if output.round is not None and output.round.proposed:
            self.num_drafts += 1
            self.num_draft_tokens += output.round.proposed
            self.num_accepted_tokens += output.round.accepted
            self.accepted_per_position.update(range(output.round.accepted))

    def observe_end(self, answer: Answer, reason: str) -> None:
        """Count a request that was admitted and is over, for whatever reason."""
        self.finished[reason] += 1
        self.prompt_tokens += len(answer.prompt_token_ids)
        self.fallbacks += answer.last.fallbacks if answer.last else 0
        if answer.first_ns is not None:
            self.time_to_first_token.observe((answer.first_ns - answer.received_ns) / NS_PER_S)
        per_token_s = answer.time_per_output_token_s()
        if per_token_s is not None:
            self.time_per_output_token.observe(per_token_s)


class ServerCollector(Collector):
    """Turns the counters into metric families whenever they are scraped.

    `engine`: gives the engine's snapshot, None while no engine is loaded. `model_name`: the value of every
    sample's `model_name` label. `num_spec_tokens`: positions that are always shown, so that a missing
    position is never read as none.
    """

    def __init__(
        self,
        counters: RequestCounters,
        engine: Callable[[], EngineStats | None],
        model_name: str,
        num_spec_tokens: int,
    ) -> None:
        self._counters, self._engine, self._model_name = counters, engine, model_name
        self._num_spec_tokens = num_spec_tokens

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family."""
        yield from self._request_families()
        yield from self._acceptance_families()
        memory = psutil.Process().memory_info().rss
        yield self._gauge("process_resident_memory_bytes", "Resident memory.", memory)
        stats = self._engine()
        if stats is not None:
            yield from self._engine_families(stats)
            yield from self._policy_families(stats)
            yield from self._time_families(stats)

    def _request_families(self) -> Iterable[Metric]:
        counters = self._counters
        ends = {reason: counters.finished[reason] for reason in ("stop", "length", "cancelled", "error")}
        yield self._counter("prompt_tokens", "Prompt tokens of finished requests.", counters.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens delivered.", counters.generation_tokens)
        yield self._counter("requests_rejected", "Requests refused by a full queue.", counters.rejected)
        yield self._counter("request_success", "Finished requests.", ends, "finished_reason")
        yield self._histogram("time_to_first_token_seconds", "From receipt.", counters.time_to_first_token)
        yield self._histogram(
            "request_time_per_output_token_seconds", "Per request.", counters.time_per_output_token
        )

    def _acceptance_families(self) -> Iterable[Metric]:
        counters, name = self._counters, "spec_decode_num"
        accepted = counters.accepted_per_position
        positions = range(max([self._num_spec_tokens, *(position + 1 for position in accepted)]))
        by_position = {str(position): accepted[position] for position in positions}
        yield self._counter(f"{name}_drafts", "Steps that drafted.", counters.num_drafts)
        yield self._counter(f"{name}_draft_tokens", "Drafted tokens.", counters.num_draft_tokens)
        yield self._counter(f"{name}_accepted_tokens", "Accepted drafts.", counters.num_accepted_tokens)
        yield self._counter(
            f"{name}_accepted_tokens_per_pos", "Accepted drafts by position.", by_position, "position"
        )
        yield self._counter("spec_decode_fallbacks", "Drafter failures survived.", counters.fallbacks)

    def _engine_families(self, stats: EngineStats) -> Iterable[Metric]:
        yield self._gauge("num_requests_running", "Sequences with a slot.", stats.running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", stats.waiting)
        yield self._gauge("kv_cache_tokens", "Tokens in the key-value cache.", stats.kv_tokens)
        yield self._gauge("kv_cache_bytes", "Bytes of the key-value cache.", stats.kv_bytes)

    def _policy_families(self, stats: EngineStats) -> Iterable[Metric]:
        rounds, paused = (
            "Rounds of sequences that could draft.",
            "Rounds in which the policy paused drafting.",
        )
        yield self._counter("spec_rounds", rounds, stats.policy_rounds, "policy")
        yield self._counter("spec_paused_rounds", paused, stats.paused_rounds, "policy")
        if stats.draft_length is not None:
            yield self._gauge(
                "spec_draft_length_current",
                "Mean draft length over the sequences of the last round, as the policies decided it.",
                stats.draft_length,
            )
        yield self._gauge(
            "spec_estimated_gain",
            "Throughput with drafts over that without, as adaptive and auto estimate it from recent rounds.",
            stats.draft_gains,
            "method",
        )

    def _time_families(self, stats: EngineStats) -> Iterable[Metric]:
        yield self._counter("engine_steps", "Forward passes of the engine.", stats.steps)
        yield self._counter("draft_seconds", "Drafting.", stats.draft_ns / NS_PER_S)
        yield self._counter("verify_seconds", "Target forward passes.", stats.verify_ns / NS_PER_S)
        yield self._counter("sample_seconds", "Acceptance and sampling.", stats.sample_ns / NS_PER_S)
        yield self._counter("schedule_seconds", "Scheduling.", stats.schedule_ns / NS_PER_S)

    def _counter(self, name: str, text: str, values: Values, label: str | None = None) -> Metric:
        labels = ["model_name", *([] if label is None else [label])]
        return self._fill(CounterMetricFamily(PREFIX + name, text, labels=labels), values)

    def _gauge(self, name: str, text: str, values: Values, label: str | None = None) -> Metric:
        labels = ["model_name", *([] if label is None else [label])]
        return self._fill(GaugeMetricFamily(PREFIX + name, text, labels=labels), values)

    def _fill(self, family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
        """Add one sample, or one for each value of the family's own label."""
        if not isinstance(values, Mapping):
            family.add_metric([self._model_name], values)
            return family
        for labelled, value in values.items():
            family.add_metric([self._model_name, labelled], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, text, labels=["model_name"])
        buckets, total = histogram.cumulative()
        family.add_metric([self._model_name], buckets, total)
        return family


def render_metrics(collector: Collector) -> bytes:
    """Return the Prometheus text of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
