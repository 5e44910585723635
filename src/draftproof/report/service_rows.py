"""What is shown of a service's own figures: names of quantities, and how each is written.

Pure. One list, read by the page and by the terminal.
"""

from collections.abc import Callable, Sequence

from draftproof.report.quantities import (
    MINUS,
    MISSING,
    format_bytes,
    format_count,
    format_ms,
    format_ratio,
    format_share,
    format_significant,
    format_sizes,
)
from draftproof.verdict.services.results import Gauge, ServiceAgreement, ServiceStart, ServiceUse

STANDINGS = {
    "exact": "the same",
    "close": "within 1 %",
    "explained": "explained by requests broken off",
    "differs": "differs",
    "unknown": "one side only",
}
COMPARED = {
    "finished_requests": "Finished requests",
    "output_tokens": "Output tokens",
    "num_spec_steps": "Verification steps",
    "num_draft_tokens": "Drafted tokens",
    "num_accepted_draft_tokens": "Accepted drafts",
    "tokens_per_decode_step": "Tokens per decode step",
}
DRAWN = {
    "waiting": "Queue (requests)",
    "running": "Running (requests)",
    "cache_usage": "Cache in use",
    "resident_bytes": "Resident memory",
    "gpu_memory_bytes": "GPU memory",
}


def _mean_and_most(gauge: Gauge | None, write: Callable[[float | None], str]) -> str:
    return MISSING if gauge is None else f"{write(gauge.mean)}, at most {write(gauge.maximum)}"


def _whole(value: float | None) -> str:
    return MISSING if value is None else format_count(round(value))


def _processor(use: ServiceUse) -> str:
    if use.cpu_seconds is None:
        return MISSING
    cores = f" ({use.cpu_seconds / use.machine_seconds:.1f} cores)" if use.machine_seconds else ""
    return f"{format_significant(use.cpu_seconds)} s{cores}"


def _positions(use: ServiceUse) -> str:
    """Write accepted drafts by position, and of how many where the engine counts them."""
    if not use.accepted_by_position:
        return MISSING
    drafted = use.drafted_by_position
    shares = [
        format_share(accepted / drafted[place])
        if place < len(drafted) and drafted[place]
        else _whole(accepted)
        for place, accepted in enumerate(use.accepted_by_position)
    ]
    return ", ".join(shares)


def _seconds(value: float | None) -> str:
    return MISSING if value is None else f"{format_significant(value)} s"


def _joules(use: ServiceUse) -> str:
    value = use.energy_per_output_token_joules
    return MISSING if value is None else f"{format_significant(value)} J"


USE_ROWS: tuple[tuple[str, Callable[[ServiceUse], str]], ...] = (
    ("Turns used", lambda use: f"{use.turns_used} of {use.turns}"),
    ("Queue, mean", lambda use: _mean_and_most(use.waiting, format_significant)),
    ("Running requests, mean", lambda use: _mean_and_most(use.running, format_significant)),
    ("Cache in use, mean", lambda use: _mean_and_most(use.cache_usage, format_share)),
    ("Preemptions", lambda use: _whole(use.preemptions)),
    ("Generated tokens", lambda use: _whole(use.generation_tokens)),
    ("Engine steps", lambda use: _whole(use.engine_steps)),
    ("Tokens per engine step", lambda use: format_ratio(use.tokens_per_engine_step)),
    ("Draft acceptance rate", lambda use: format_share(use.draft_acceptance_rate)),
    ("Mean acceptance length", lambda use: format_ratio(use.mean_acceptance_length)),
    ("Accepted drafts by position", _positions),
    ("Drafting", lambda use: _seconds(use.draft_seconds)),
    ("Verification or ordinary decoding", lambda use: _seconds(use.verify_seconds)),
    ("Resident memory, most", lambda use: format_bytes(use.resident_max_bytes)),
    ("Processor time", _processor),
    ("GPU memory, most", lambda use: format_bytes(use.gpu_memory_max_bytes)),
    ("GPU busy, mean", lambda use: _mean_and_most(use.gpu_busy, format_share)),
    ("GPU power (W), mean", lambda use: _mean_and_most(use.gpu_power_watts, format_significant)),
    ("Energy per output token", _joules),
)
START_ROWS: tuple[tuple[str, Callable[[ServiceStart], str]], ...] = (
    ("Time to load", lambda start: _seconds(start.load_time_s)),
    ("First request: first token (ms)", lambda start: format_ms(start.cold_ttft_ns)),
    ("First request: whole answer (ms)", lambda start: format_ms(start.cold_e2e_ns)),
    ("First request: outcome", lambda start: start.cold_outcome or MISSING),
)

_SIZES: dict[str, Callable[[ServiceUse], float | None]] = {
    "Resident memory, most": lambda use: use.resident_max_bytes,
    "GPU memory, most": lambda use: use.gpu_memory_max_bytes,
}


def use_texts(label: str, write: Callable[[ServiceUse], str], uses: Sequence[ServiceUse]) -> list[str]:
    """Return a row of `USE_ROWS` as text for each arm; sizes in one unit."""
    size = _SIZES.get(label)
    return [write(use) for use in uses] if size is None else format_sizes([size(use) for use in uses])


def agreement_values(row: ServiceAgreement) -> tuple[str, str, str, str]:
    """Return client, service, difference and standing of one row as text."""
    write = format_ratio if row.quantity == "tokens_per_decode_step" else _whole
    return write(row.client), write(row.service), _difference(row, write), STANDINGS[row.standing]


def _difference(row: ServiceAgreement, write: Callable[[float | None], str]) -> str:
    if row.difference is None:
        return MISSING
    if row.difference == 0:
        return "0"
    sign = MINUS if row.difference < 0 else "+"
    return f"{sign}{write(abs(row.difference))}"
