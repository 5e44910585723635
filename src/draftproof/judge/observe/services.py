"""What the services say of themselves, per arm and load: gains of counters, gauges, energy, starts. Pure.

Owns which periods may be used: those in which every replica was sampled at both ends and no counter fell.
Also services that somebody else runs and that were started anew between two periods: every counter is in
order there and yet the service is cold.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from draftproof.core.records import RequestRecord
from draftproof.judge.metrics import host_use as host
from draftproof.judge.metrics.acceptance import ClientTally, tally_client
from draftproof.judge.metrics.telemetry import (
    START_TIME,
    GaugeSummary,
    PeriodGains,
    PeriodKey,
    PeriodSamples,
    Read,
    Stretch,
    collect_periods,
    draw_line,
    gain_of_counter,
    integrate_power,
    read_gains,
    read_mean,
    read_sum,
    summarise_gauge,
)
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.inform import Gauge, ServiceLine, ServiceStart, ServiceUse
from draftproof.plan.schema import Arm
from draftproof.services.engines import ADAPTERS, GENERIC
from draftproof.services.engines.facts import EngineFacts
from draftproof.services.engines.values import parse_series

_MEMORY = (host.GPU_MEMORY_BYTES, host.DCGM_MEMORY_MIB)
_POWER = (host.GPU_POWER_WATTS, host.DCGM_POWER_WATTS)
_ENERGY = (host.GPU_ENERGY_JOULES, host.DCGM_ENERGY_MILLIJOULES)
_BUSY = (host.GPU_BUSY_SHARE, host.DCGM_BUSY_PERCENT)


class ServicePeriod(msgspec.Struct, frozen=True, kw_only=True):
    """One period: its samples, what the counters gained, and what the client got in it."""

    samples: PeriodSamples
    gains: PeriodGains
    client: ClientTally


class ServiceReadings(msgspec.Struct, frozen=True, kw_only=True):
    """All periods that have samples, in a fixed order, with the facts of each arm's engine.

    `shown` are the counters that an arm's service shows anywhere in the run: one that is not there yet in a
    period gained nothing in it.
    """

    periods: dict[PeriodKey, ServicePeriod]
    facts: dict[str, EngineFacts]
    shown: dict[str, frozenset[str]]

    def of(self, arm: str, load: str) -> list[ServicePeriod]:
        """Return the periods of an arm at a load in order."""
        return [one for (at, _, name), one in self.periods.items() if (name, at) == (arm, load)]

    def usable(self, arm: str, load: str) -> list[ServicePeriod]:
        """Return those of them whose counters can be used."""
        return [one for one in self.of(arm, load) if one.gains.unused is None]

    def gain(self, arm: str, periods: Iterable[ServicePeriod], quantity: str) -> float | None:
        """Return what a counter gained over an arm's periods, None where it has none or there are none."""
        periods = list(periods)
        if not periods or quantity not in self.shown.get(arm, ()):
            return None
        return sum(one.gains.gains.get(quantity, 0.0) for one in periods)


def read_services(prepared: PreparedRun) -> ServiceReadings:
    """Return the periods of a run as its telemetry shows them, beside what the client got in them."""
    facts = {arm: ADAPTERS.get(arm_of(prepared, arm).engine, GENERIC).facts for arm in prepared.arms}
    samples = {
        key: period for key, period in collect_periods(prepared.run.telemetry).items() if key[2] in facts
    }
    replicas: defaultdict[str, set[int]] = defaultdict(set)
    for (_, _, arm), period in samples.items():
        replicas[arm] |= period.engine.keys()
    records = _records_by_period(prepared)
    most = _most_tokens(prepared)
    periods = {
        key: ServicePeriod(
            samples=period,
            gains=read_gains(period, facts[key[2]].series, sorted(replicas[key[2]])),
            client=tally_client(records.get(key, ()), most),
        )
        for key, period in samples.items()
    }
    shown: defaultdict[str, set[str]] = defaultdict(set)
    for (_, _, arm), one in periods.items():
        shown[arm] |= one.gains.gains.keys()
    return ServiceReadings(
        periods=periods, facts=facts, shown={arm: frozenset(names) for arm, names in shown.items()}
    )


def summarise_services(prepared: PreparedRun, readings: ServiceReadings) -> tuple[ServiceUse, ...]:
    """Return every arm at every load for which there are samples."""
    return tuple(
        _summarise(readings, arm, load)
        for load in prepared.loads
        for arm in prepared.arms
        if readings.of(arm, load)
    )


def list_starts(prepared: PreparedRun) -> tuple[ServiceStart, ...]:
    """Return how the arms that this run started began; nothing for services that ran already."""
    return tuple(
        ServiceStart(
            arm=one.arm,
            load_time_s=one.load_time_s,
            cold_outcome=one.cold.outcome if one.cold else None,
            cold_ttft_ns=one.cold.ttft_ns if one.cold else None,
            cold_e2e_ns=one.cold.e2e_ns if one.cold else None,
        )
        for one in prepared.run.manifest.arms
        if one.load_time_s is not None or one.cold is not None
    )


def list_silent(prepared: PreparedRun, readings: ServiceReadings) -> Iterator[str]:
    """Yield a warning for every arm of whose metrics addresses, named in the plan, not all ever answered."""
    for arm in prepared.arms:
        named = len(arm_of(prepared, arm).metrics_urls)
        periods = [one.samples for (_, _, name), one in readings.periods.items() if name == arm]
        seen = {replica for one in periods for replica in (*one.engine, *one.host) if replica < named}
        if len(seen) < named:
            yield (
                f"Of the {named} metrics addresses that the plan names for {arm}, {named - len(seen)} never "
                "gave a sample; what they count is in no figure of the service."
            )


def draw_lines(prepared: PreparedRun, readings: ServiceReadings) -> tuple[ServiceLine, ...]:
    """Return queue, running requests, cache use and memory over time, where samples have them."""
    found = []
    for load in prepared.loads:
        for arm in prepared.arms:
            periods = [one.samples for one in readings.of(arm, load)]
            for quantity, read, source, is_share in _list_gauges(readings.facts[arm], periods):
                line = draw_line(periods, read, source=source, is_share=is_share)
                if line is not None and len(line.values) > 1:
                    found.append(
                        ServiceLine(
                            arm=arm, load=load, quantity=quantity, times_s=line.times_s, values=line.values
                        )
                    )
    return tuple(found)


def _list_gauges(facts: EngineFacts, periods: Sequence[PeriodSamples]) -> list[tuple[str, Read, str, bool]]:
    """Return (quantity, reader, source, whether it is a share) of what is drawn over time."""
    series, memory = facts.series, _find_present(periods, _MEMORY)
    return [
        ("waiting", read_sum(series.waiting), "engine", False),
        ("running", read_sum(series.running), "engine", False),
        ("cache_usage", read_mean(series.cache_usage), "engine", True),
        ("resident_bytes", read_sum((host.RESIDENT_BYTES,)), "host", False),
        *(("gpu_memory_bytes", read_sum((name,)), "host", False) for name in memory),
    ]


def _find_present(periods: Iterable[PeriodSamples], names: Sequence[str]) -> tuple[str, ...]:
    """Return the first of several names that the machine's samples have, so that no GPU counts twice."""
    seen = {
        parse_series(series)[0]
        for period in periods
        for stretches in period.host.values()
        for stretch in stretches
        for series in stretch.samples[0].values
    }
    return tuple(name for name in names if name in seen)[:1]


def _summarise(readings: ServiceReadings, arm: str, load: str) -> ServiceUse:
    seen, used = readings.of(arm, load), readings.usable(arm, load)
    periods, series = [one.samples for one in seen], readings.facts[arm].series
    gain = {name: readings.gain(arm, used, name) for name in readings.shown.get(arm, ())}
    resident = summarise_gauge(periods, read_sum((host.RESIDENT_BYTES,)), source="host")
    memory = summarise_gauge(periods, read_sum(_find_present(periods, _MEMORY)), source="host")
    read = [one for one in seen if _is_machine_read(one.samples)]
    watched = [one.samples for one in read]
    gpu, cpu = _sum_gpu_energy(watched), _sum_energy(watched, host.CPU_ENERGY_JOULES, gain_of_counter)
    return ServiceUse(
        arm=arm,
        load=load,
        periods=len(seen),
        periods_used=len(used),
        samples=sum(_count_samples(one) for one in periods),
        seconds=sum(one.samples.seconds or 0.0 for one in used),
        unused=tuple(f"period {one.samples.name}: {one.gains.unused}" for one in seen if one.gains.unused),
        generation_tokens=gain.get("generation_tokens"),
        prompt_tokens=gain.get("prompt_tokens"),
        finished_requests=gain.get("finished_requests"),
        engine_steps=gain.get("engine_steps"),
        preemptions=gain.get("preemptions"),
        tokens_per_engine_step=_ratio(gain.get("generation_tokens"), gain.get("engine_steps")),
        num_spec_steps=gain.get("spec_steps"),
        num_draft_tokens=gain.get("draft_tokens"),
        num_accepted_draft_tokens=gain.get("accepted_tokens"),
        draft_acceptance_rate=_ratio(gain.get("accepted_tokens"), gain.get("draft_tokens")),
        mean_acceptance_length=_add_one(_ratio(gain.get("accepted_tokens"), gain.get("spec_steps"))),
        accepted_by_position=_sum_positions(used, "accepted_by_position"),
        drafted_by_position=_sum_positions(used, "drafted_by_position"),
        draft_seconds=gain.get("draft_seconds"),
        verify_seconds=gain.get("verify_seconds"),
        running=_to_gauge(summarise_gauge(periods, read_sum(series.running))),
        waiting=_to_gauge(summarise_gauge(periods, read_sum(series.waiting))),
        cache_usage=_to_gauge(summarise_gauge(periods, read_mean(series.cache_usage), is_share=True)),
        resident_max_bytes=resident.maximum if resident else None,
        machine_seconds=_sum_over(watched, lambda one: one.seconds),
        cpu_seconds=_sum_over(watched, lambda one: gain_of_counter(one, host.CPU_SECONDS)),
        gpu_memory_max_bytes=memory.maximum if memory else None,
        gpu_busy=_to_gauge(
            summarise_gauge(periods, read_mean(_find_present(periods, _BUSY)), source="host", is_share=True)
        ),
        gpu_power_watts=_to_gauge(
            summarise_gauge(periods, read_sum(_find_present(periods, _POWER)), source="host")
        ),
        gpu_energy_joules=gpu,
        cpu_energy_joules=cpu,
        energy_per_output_token_joules=_per_token(read, gpu, cpu),
        prefix_queries=gain.get("prefix_queries"),
        prefix_hits=gain.get("prefix_hits"),
    )


def _is_machine_read(period: PeriodSamples) -> bool:
    """Return whether the machine was read at both ends of a period."""
    stretches = [stretch for replica in period.host.values() for stretch in replica]
    return bool(stretches) and all(stretch.is_whole for stretch in stretches)


def _sum_gpu_energy(periods: Sequence[PeriodSamples]) -> float | None:
    """Return the GPUs' energy: by the first counter that all periods have, else from samples of power."""
    for read, names in ((gain_of_counter, _ENERGY), (integrate_power, _POWER)):
        for name in names:
            total = _sum_energy(periods, name, read)
            if total is not None:
                return total
    return None


def _sum_energy(
    periods: Sequence[PeriodSamples], name: str, read: Callable[[PeriodSamples, str], float | None]
) -> float | None:
    """Return joules over periods; a counter that never moves counts nothing and is as good as none."""
    return _sum_over(periods, lambda one: read(one, name)) or None


def _per_token(periods: Sequence[ServicePeriod], gpu: float | None, cpu: float | None) -> float | None:
    """Return joules per output token over periods, None where the client's tokens are not known."""
    tokens = [one.client.tokens for one in periods]
    if (gpu is None and cpu is None) or any(count is None for count in tokens):
        return None
    return _ratio((gpu or 0.0) + (cpu or 0.0), float(sum(count or 0 for count in tokens)))


def _sum_over(
    periods: Sequence[PeriodSamples], read: Callable[[PeriodSamples], float | None]
) -> float | None:
    """Return the sum over periods, None where one of them lacks the value or there are none."""
    values = [read(one) for one in periods]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _sum_positions(periods: Iterable[ServicePeriod], name: str) -> tuple[float, ...]:
    total: defaultdict[int, float] = defaultdict(float)
    for one in periods:
        for position, gain in one.gains.positions.get(name, {}).items():
            total[position] += gain
    return tuple(total[position] for position in range(max(total, default=-1) + 1))


def _to_gauge(summary: GaugeSummary | None) -> Gauge | None:
    return None if summary is None else msgspec.convert(msgspec.structs.asdict(summary), Gauge)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _add_one(value: float | None) -> float | None:
    return None if value is None else 1 + value


def _count_samples(period: PeriodSamples) -> int:
    kinds = (*period.engine.values(), *period.host.values())
    return sum(len(stretch.samples) for stretches in kinds for stretch in stretches)


def arm_of(prepared: PreparedRun, arm: str) -> Arm:
    """Return an arm of the plan; the second baseline is the baseline once more."""
    arms = prepared.plan.arms
    known = {"baseline": arms.baseline, "candidate": arms.candidate, "alternative": arms.alternative}
    return known.get(arm) or arms.baseline


def _records_by_period(prepared: PreparedRun) -> Mapping[PeriodKey, list[RequestRecord]]:
    found: defaultdict[PeriodKey, list[RequestRecord]] = defaultdict(list)
    for record in sorted(prepared.run.records, key=lambda one: (one.end_ns, one.request_id)):
        found[record.load, record.block, record.arm].append(record)
    return found


def _most_tokens(prepared: PreparedRun) -> dict[str, int]:
    cap = prepared.plan.workload.max_tokens
    most = {
        one.id: max([one.max_tokens, *(later.max_tokens or 0 for later in one.follow_ups)])
        for one in prepared.run.items
    }
    return {name: min(limit, cap or limit) for name, limit in most.items()}


def list_restarts(prepared: PreparedRun, readings: ServiceReadings) -> Iterator[str]:
    """Yield a warning for each arm that is only attached to and whose process began anew between periods."""
    for arm in prepared.arms:
        if arm_of(prepared, arm).url is None:
            continue
        found = list(_find_restarts(readings, arm))
        if found:
            before, after = found[0]
            more = f" and {len(found) - 1} times more" if len(found) > 1 else ""
            yield (
                f"The service of {arm} was started anew between its periods {before} and "
                f"{after}{more}, as its "
                f"{START_TIME} shows; it may have been cold in the later one."
            )


def _find_restarts(readings: ServiceReadings, arm: str) -> Iterator[tuple[str, str]]:
    """Yield the names of neighbouring periods between which a replica's start time changed."""
    periods = sorted((key[1], one.samples) for key, one in readings.periods.items() if key[2] == arm)
    replicas = sorted({replica for _, period in periods for replica in period.engine})
    for replica in replicas:
        own = [(period.name, period.engine[replica]) for _, period in periods if replica in period.engine]
        for (before, earlier), (after, later) in pairwise(own):
            ended, began = _read_start(earlier[-1], -1), _read_start(later[0], 0)
            if ended is not None and began is not None and ended != began:
                yield before, after


def _read_start(stretch: Stretch, index: int) -> float | None:
    values = stretch.samples[index].values
    times = [value for series, value in values.items() if parse_series(series)[0] == START_TIME]
    return max(times, default=None)
