"""A run in progress as text: whole snapshots at the widths of real terminals, and the lines of a log."""

from typing import Any

import msgspec
import pytest

from draftproof.cli.live import describe_period, describe_warmup, render_progress
from draftproof.core.records import Warmup, WarmupGroup
from draftproof.measure.run.progress_model import ArmView, PeriodView, ProgressView, format_duration

FRESH = ArmView(
    arm="baseline",
    state="waiting",
    done=0,
    planned=72,
    on_time_share=None,
    tpot_ns=None,
    ttft_ns=None,
    failures={},
)
LAST = PeriodView(
    number=3,
    periods=16,
    load="busy",
    arm="candidate",
    completed=True,
    requests=18,
    failures={},
    on_time_share=0.94,
    tpot_ns=21.34e6,
    lag_max_ns=3_200_000,
    client_cpu_share=0.12,
    client_faults=(),
    left_s=118.0,
)
WARMUP = Warmup(
    arm="candidate",
    load="busy",
    block=0,
    start=1,
    started_ns=0,
    ended_ns=4_200_000_000,
    stable=True,
    tolerance=0.1,
    change=0.043,
    groups=(WarmupGroup(requests=8, answered=8), WarmupGroup(requests=8, answered=8)),
)


def arm(name: str, state: str, **fields: Any) -> ArmView:
    known = {"on_time_share": 0.94, "tpot_ns": 21.34e6, "ttft_ns": 143.2e6}
    return msgspec.structs.replace(FRESH, arm=name, state=state, **(known | fields))


BUSY = ProgressView(
    arms=(
        arm("baseline", "ended", done=72),
        arm("candidate", "measuring", done=18, failures={"timeout": 2, "cut": 1}),
        msgspec.structs.replace(FRESH, arm="alternative", state="warming up"),
        arm("baseline_null", "waiting", done=1_234, planned=14_400, on_time_share=0.999),
    ),
    period=4,
    periods=16,
    load="busy",
    elapsed_s=133.9,
    left_s=424.0,
    last=msgspec.structs.replace(
        LAST,
        lag_max_ns=120_000_000,
        client_faults=("the client itself was late", "a load process filled its core"),
    ),
    is_stopping=False,
)
AT_110 = """\
Arm            State             Done  Failed  On time  ms/token  First ms
baseline       ended            72/72       0     94 %      21.3       143
candidate      measuring        18/72       3     94 %      21.3       143
alternative    warming up        0/72       0        –         –         –
baseline_null  waiting     1234/14400       0     99 %      21.3       143

Period 4 of 16, load busy · 02:13 elapsed · about 7 min left
Client in the last period: lag 120 ms at most · 12 % of a core
candidate: 1 cut, 2 timeout
Times of the last period (candidate) do not count · the client itself was late
a load process filled its core
"""
AT_69 = """\
Arm           State            Done Failed On time ms/token First ms
baseline      ended           72/72      0    94 %     21.3      143
candidate     measuring       18/72      3    94 %     21.3      143
alternative   warming up       0/72      0       –        –        –
baseline_null waiting    1234/14400      0    99 %     21.3      143

Period 4 of 16, load busy · 02:13 elapsed · about 7 min left
Client in the last period: lag 120 ms at most · 12 % of a core
candidate: 1 cut, 2 timeout
Times of the last period (candidate) do not count
the client itself was late · a load process filled its core
"""
AT_39 = """\
Arm                 Done ms/token
baseline           72/72     21.3
candidate          18/72     21.3
alternative         0/72        –
baseline_null 1234/14400     21.3

Period 4 of 16, load busy
02:13 elapsed · about 7 min left
Client in the last period: lag 120 ms
at most · 12 % of a core
candidate: 1 cut, 2 timeout
Times of the last period (candidate) do
not count · the client itself was late
a load process filled its core
"""


def text(view: ProgressView, width: int) -> str:
    return "".join("".join(piece for piece, _ in line) + "\n" for line in render_progress(view, width))


@pytest.mark.parametrize(("width", "expected"), [(110, AT_110), (69, AT_69), (39, AT_39)])
def test_the_view_at_the_width_of_a_terminal(width, expected):
    """Wide: everything. 70 columns: everything, closer. 40: arm, done and time per token."""
    assert text(BUSY, width) == expected


@pytest.mark.parametrize("width", [*range(1, 40), 60, 200])
def test_no_line_is_wider_than_the_terminal(width):
    """Whatever the width, so that no line wraps and throws the next drawing off."""
    stopping = msgspec.structs.replace(BUSY, is_stopping=True)
    assert max(map(len, text(stopping, width).splitlines())) <= width


def test_before_the_first_period_nothing_is_invented():
    """Dashes and "not known", no zero of a rate."""
    view = msgspec.structs.replace(
        BUSY, arms=(FRESH,), period=0, load=None, left_s=None, last=None, elapsed_s=3.0
    )
    assert text(view, 100).splitlines() == [
        "Arm       State    Done  Failed  On time  ms/token  First ms",
        "baseline  waiting  0/72       0        –         –         –",
        "",
        "Period 0 of 16 · 00:03 elapsed · time left: not known",
    ]


def test_a_stop_is_acknowledged():
    """A user who pressed Ctrl-C sees that it was heard."""
    assert "Stopping" in text(msgspec.structs.replace(BUSY, is_stopping=True), 79)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {},
            (
                "period 3/16 busy candidate: 18 requests, 0 failed, 21.3 ms per token, on time 94 %, "
                "about 2 min left"
            ),
        ),
        (
            {"failures": {"timeout": 2, "cut": 1}, "on_time_share": None, "left_s": None},
            "period 3/16 busy candidate: 18 requests, 3 failed (1 cut, 2 timeout), 21.3 ms per token",
        ),
        (
            {"completed": False, "requests": 1, "tpot_ns": None, "on_time_share": 0.0},
            "period 3/16 busy candidate: 1 request, 0 failed, on time 0 %, not complete",
        ),
        (
            {"client_faults": ("the client itself was late",), "number": 16},
            (
                "period 16/16 busy candidate: 18 requests, 0 failed, 21.3 ms per token, on time 94 %, "
                "times do not count (the client itself was late)"
            ),
        ),
        (
            {"failures": None, "tpot_ns": None, "on_time_share": None, "left_s": 7_300.0},
            "period 3/16 busy candidate: 18 requests, about 2 h 2 min left",
        ),
        (
            {"twice": 4, "failures": None, "tpot_ns": None, "on_time_share": None},
            "period 3/16 (4 measured twice) busy candidate: 18 requests, about 2 min left",
        ),
    ],
    ids=["usual", "failures", "broken off", "late client", "worker processes", "measured twice"],
)
def test_a_period_is_one_line_of_a_log(changes, expected):
    """What is not known is left out, what went wrong is named."""
    assert describe_period(msgspec.structs.replace(LAST, **changes)) == expected


def test_a_warm_up_is_one_line_of_a_log():
    """Loud where it was not stable."""
    assert describe_warmup(WARMUP) == "warm-up busy candidate: 16 requests in 4.2 s, stable, last change 4%"
    restless = msgspec.structs.replace(WARMUP, stable=False, change=None)
    assert describe_warmup(restless) == "warm-up busy candidate: 16 requests in 4.2 s, NOT STABLE"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.2, "0 s"), (89.4, "89 s"), (90, "2 min"), (5_399, "1 h 30 min"), (7_230, "2 h 0 min")],
)
def test_durations_are_rough(seconds, expected):
    """No false precision, and no 90 minutes."""
    assert format_duration(seconds) == expected
