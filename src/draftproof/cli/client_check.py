"""`draftproof client-check`: its options and what a person or a script reads of it."""

from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.console import JsonOption, console_progress, print_either
from draftproof.core.errors import UsageError

if TYPE_CHECKING:
    from draftproof.measure.selfcheck.client_check import ClientCheck, Judged

UNFIT_CODE = 40

_Streams = Annotated[int, typer.Option("--streams", help="Streams open at once.")]
_Rate = Annotated[float, typer.Option("--chunks-per-s", help="Chunks a second over all streams.")]
_Seconds = Annotated[float, typer.Option("--seconds", help="Steady seconds of every profile.")]
_Wide = Annotated[int, typer.Option("--capacity-streams", help="Streams open while the rate is raised.")]


def client_check(
    *,
    streams: _Streams = 64,
    chunks_per_s: _Rate = 2000.0,
    seconds: _Seconds = 16.0,
    capacity_streams: _Wide = 256,
    as_json: JsonOption = False,
) -> None:
    """Measure how exact and how fast this client is here, against a server that knows what it wrote when.

    Exits 0 where the client is shown to keep its limits at the load given, 40 where it is not: beyond one, or
    asked too few requests to tell.
    """
    from draftproof.measure.selfcheck.client_check import check_client  # noqa: PLC0415

    _check("--streams", streams, least=1, most=4096)
    _check("--capacity-streams", capacity_streams, least=1, most=4096)
    _check("--seconds", seconds, least=1, most=600)
    _check("--chunks-per-s", chunks_per_s, least=10, most=200_000)
    with console_progress() as progress:
        found = check_client(
            streams=streams,
            chunks_per_s=chunks_per_s,
            seconds=seconds,
            capacity_streams=capacity_streams,
            tell=progress.phase,
        )
    print_either(found, lambda: render_client_check(found), as_json=as_json)
    raise typer.Exit(0 if found.is_fit else UNFIT_CODE)


def render_client_check(found: "ClientCheck") -> str:
    """Return the check as text: a line a stretch, what was beyond its limit, and the outcome."""
    head = (
        f"{'load':26} {'chunks/s':>9} {'first token ms':>16} {'gap ms':>16} {'per token':>10} "
        f"{'CPU s/1000':>11}"
    )
    under = f"{'':26} {'':>9} {'p50':>8}{'p99':>8} {'p50':>8}{'p99':>8}"
    exact = sum(one.is_exact for one in found.faults)
    lines = [
        "Errors against a server that knows when it wrote each chunk:",
        head,
        under,
        *(_line(one) for one in (*found.profiles, *found.capacity)),
        _floor(found),
        *(f"  beyond: {one.stretch.profile}: {text}" for one in found.profiles for text in one.beyond),
        *(f"  too short: {one.stretch.profile}: {text}" for one in found.profiles for text in one.not_shown),
        f"Faults: {exact} of {len(found.faults)} kinds counted exactly.",
        *(
            f"  {one.fault}: {one.counted}, all {one.requests} are {one.expected}"
            for one in found.faults
            if not one.is_exact
        ),
        _capacity(found),
        _outcome(found),
    ]
    return "\n".join(lines)


_UNFIT = (
    "This client may not judge at this load: stop other programs, lower the load, or use a faster machine."
)


_TOO_SHORT = (
    "This check was too short to show whether this client may judge at this load: give it more --seconds."
)


def _outcome(found: "ClientCheck") -> str:
    if found.is_fit:
        return "This client may judge at this load."
    return _TOO_SHORT if found.is_too_short else _UNFIT


def _floor(found: "ClientCheck") -> str:
    floor = found.host_floor_ms
    return (
        f"This host: the barest reader that goes by its own clock has gap errors of p50 "
        f"{_show(floor.p50, '.3f')} ms, p99 {_show(floor.p99, '.3f')} ms."
    )


def _capacity(found: "ClientCheck") -> str:
    streams = found.capacity[0].stretch.streams
    if found.max_chunks_per_s is None:
        return f"Capacity with {streams} streams: below the lowest rate tried."
    return f"Capacity of one core with {streams} streams: {found.max_chunks_per_s:,.0f} chunks a second."


def _line(one: "Judged") -> str:
    stretch, error = one.stretch, one.stretch.error
    return (
        f"{stretch.profile:26} {_show(stretch.achieved_chunks_per_s, ',.0f'):>9} "
        f"{_show(error.ttft_error_ms.p50, '.3f'):>8}{_show(error.ttft_error_ms.p99, '.3f'):>8} "
        f"{_show(error.gap_error_ms.p50, '.3f'):>8}{_show(error.gap_error_ms.p99, '.3f'):>8} "
        f"{_show(error.tpot_relative_error, '.2%'):>10} {_show(stretch.cpu_s_per_1000_chunks, '.4f'):>11}"
        f"{'  beyond its limits' if one.beyond else '  too short to tell' if one.not_shown else ''}"
    )


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _check(option: str, value: float, *, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UsageError(f"is {value:g}, allowed is {least:g} to {most:g}", place=option, fix="change it.")
