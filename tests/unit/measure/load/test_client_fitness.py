"""A client against the truth: errors by hand, counts exact, and every limit with both of its sides."""

import msgspec
import pytest
from tests.builders.records import build_record

from draftproof.core.records import BlockRecord, Chunk, RequestRecord
from draftproof.judge.metrics.client_error import (
    ClientError,
    ErrorBounds,
    ErrorSpread,
    TrueAnswer,
    compute_client_error,
)
from draftproof.measure.selfcheck.client_fitness import (
    PRECISION,
    Limits,
    Stretch,
    evaluate_stretch,
    find_steady_part,
    make_stretch,
)

MS = 1_000_000


def read(item: str, arrivals_ms: list[float], counts: list[int], sent_ms: float = 0.0) -> RequestRecord:
    chunks = tuple(Chunk(round(at * MS), count) for at, count in zip(arrivals_ms, counts, strict=True))
    return build_record(
        item_id=item,
        sent_ns=round(sent_ms * MS),
        chunks=chunks,
        end_ns=chunks[-1].arrival_ns,
        output_tokens=counts[-1],
    )


def wrote(item: str, written_ms: list[float], counts: list[int], received_ms: float = 0.0) -> TrueAnswer:
    return TrueAnswer(
        text=item,
        received_ns=round(received_ms * MS),
        written_ns=tuple(round(at * MS) for at in written_ms),
        cumulative_tokens=tuple(counts),
    )


def compare(records: list[RequestRecord], truth: list[TrueAnswer]) -> ClientError:
    return compute_client_error(records, truth, {record.item_id: record.item_id for record in records})


def test_errors_by_hand() -> None:
    """Received at 0.2, written at 10.2, 20.2, 32.2, read at 10.5, 20.4, 33.4: all errors follow."""
    error = compare(
        [read("a", [10.5, 20.4, 33.4], [1, 3, 6])],
        [wrote("a", [10.2, 20.2, 32.2], [1, 3, 6], received_ms=0.2)],
    )
    assert error.ttft_error_ms.n == 1
    assert error.ttft_error_ms.p50 == pytest.approx(0.5)
    assert error.ttft_error_ms.p99 == pytest.approx(0.5)
    assert error.gap_error_ms.p50 == pytest.approx(0.1)
    assert error.gap_error_ms.p99 == pytest.approx(1.0)
    assert error.tpot_relative_error == pytest.approx(22.9 / 22.0 - 1)
    assert (error.failed, error.miscounted, error.unmatched) == (0, 0, 0)


def test_a_constant_delay_is_no_error_of_the_cadence() -> None:
    """A network that delays every byte by 5 ms delays the first token and leaves gaps and rate exact."""
    error = compare([read("a", [15, 25, 35], [1, 2, 3])], [wrote("a", [10, 20, 30], [1, 2, 3])])
    assert error.ttft_error_ms.p50 == pytest.approx(5.0)
    assert error.gap_error_ms.p99 == 0
    assert error.tpot_relative_error == 0


def test_a_lost_chunk_or_token_is_a_miscount() -> None:
    """Fewer chunks than were written, or other counts, leave no time to compare and are counted."""
    truth = [wrote(name, [10, 20, 30], [1, 2, 3]) for name in ("a", "b", "c")]
    error = compare(
        [
            read("a", [10, 30], [1, 3]),
            read("b", [10, 20, 30], [1, 2, 4]),
            read("c", [10, 20, 30], [1, 2, 3]),
        ],
        truth,
    )
    assert (error.requests, error.miscounted, error.gap_error_ms.n) == (3, 2, 2)


def test_failures_and_strangers_are_counted_apart() -> None:
    """A request that failed and one that the server never saw are no miscounts."""
    failed = msgspec.structs.replace(read("a", [10, 20], [1, 2]), outcome="cut")
    error = compare([failed, read("z", [10, 20], [1, 2])], [wrote("a", [10, 20], [1, 2])])
    assert (error.failed, error.unmatched, error.miscounted) == (1, 1, 0)
    assert error.ttft_error_ms == ErrorSpread(p50=None, p99=None, n=0)
    assert error.tpot_relative_error is None


def test_of_several_answers_to_one_text_the_nearest_counts() -> None:
    """The same text asked twice is matched by the time at which each request was received."""
    truth = [wrote("a", [10, 20], [1, 2]), wrote("a", [110, 125], [1, 2], received_ms=100)]
    error = compare([read("a", [110, 125], [1, 2], sent_ms=100)], truth)
    assert error.ttft_error_ms.p50 == 0
    assert error.gap_error_ms.p50 == 0


def bounds(
    p50_low: float = 0.09, p99_low: float = 0.9, p99_high: float = 1.1, missing: int = 0
) -> ErrorBounds:
    return ErrorBounds(p50_low=p50_low, p99_low=p99_low, p99_high=p99_high, missing=missing)


TOO_FEW = ErrorBounds(p50_low=0.09, p99_low=None, p99_high=None, missing=170)


def stretch(**changes: object) -> Stretch:
    error = ClientError(
        ttft_error_ms=ErrorSpread(p50=0.1, p99=1.0, n=400),
        gap_error_ms=ErrorSpread(p50=0.02, p99=1.0, n=25_200),
        tpot_relative_error=0.001,
        tpot_relative_error_p99=0.002,
        requests=400,
        chunks=25_600,
        failed=0,
        miscounted=0,
        unmatched=0,
        ttft_bounds_ms=bounds(),
        gap_bounds_ms=bounds(),
    )
    own = {key: value for key, value in changes.items() if key in ClientError.__struct_fields__}
    rest = {key: value for key, value in changes.items() if key not in own}
    whole = Stretch(
        profile="x",
        streams=64,
        offered_chunks_per_s=2000.0,
        achieved_chunks_per_s=1990.0,
        error=msgspec.structs.replace(error, **own),
        cpu_s_per_1000_chunks=0.01,
        cpu_share=0.2,
        event_loop_lag_ms=0.5,
        steady_s=12.8,
    )
    return msgspec.structs.replace(whole, **rest)


def test_a_client_within_every_limit_is_fit() -> None:
    """Nothing is said against a client whose errors lie within their limits."""
    assert evaluate_stretch(stretch(), PRECISION) == ()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {
                "ttft_error_ms": ErrorSpread(p50=0.33, p99=1.0, n=400),
                "ttft_bounds_ms": bounds(p50_low=0.31),
            },
            "median of first-token errors is 0.33 ms, 0.3 is allowed",
        ),
        (
            {
                "ttft_error_ms": ErrorSpread(p50=0.1, p99=2.5, n=400),
                "ttft_bounds_ms": bounds(p99_low=2.1, p99_high=9.0),
            },
            "99th percentile of first-token errors is 2.5",
        ),
        (
            {
                "gap_error_ms": ErrorSpread(p50=0.33, p99=1.0, n=25_200),
                "gap_bounds_ms": bounds(p50_low=0.31),
            },
            "median of gap errors",
        ),
        (
            {
                "gap_error_ms": ErrorSpread(p50=0.1, p99=2.5, n=25_200),
                "gap_bounds_ms": bounds(p99_low=2.1, p99_high=9.0),
            },
            "99th percentile of gap errors",
        ),
        ({"tpot_relative_error": 0.006}, "time per token is 0.006, 0.005 is allowed"),
        ({"miscounted": 1}, "1 of 400 requests miscounted"),
        ({"failed": 2}, "2 of 400 requests failed"),
        ({"unmatched": 3}, "3 of 400 requests unknown to the server"),
        ({"achieved_chunks_per_s": 1900.0}, "1,900 of 2,000 chunks per second"),
    ],
)
def test_every_limit_is_watched(changes: dict[str, object], what: str) -> None:
    """One figure that is shown to be beyond its limit is named, and nothing else."""
    (found,) = evaluate_stretch(stretch(**changes), PRECISION)
    assert what in found.text
    assert found.is_shown


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {"ttft_bounds_ms": bounds(p99_high=3.0)},
            "first-token errors lies between 0.9 and 3 ms, 2 is allowed: to tell needs 400 more requests",
        ),
        (
            {"ttft_error_ms": ErrorSpread(p50=0.31, p99=1.0, n=400)},
            "median of first-token errors is 0.31 ms, 0.3 is allowed, by too few requests to tell",
        ),
        ({"gap_bounds_ms": bounds(p99_high=3.0)}, "gap errors lies between"),
        ({"gap_error_ms": ErrorSpread(p50=None, p99=None, n=0)}, "gap errors are not known"),
        ({"tpot_relative_error": None}, "time per token is not known"),
        ({"achieved_chunks_per_s": 1957.0}, "1,957 of 2,000 chunks per second"),
        ({"achieved_chunks_per_s": None}, "too short for a rate"),
    ],
)
def test_what_a_stretch_was_too_short_to_show_is_no_finding_against_the_client(
    changes: dict[str, object], what: str
) -> None:
    """Neither kept nor broken: it says so, and how much more would tell."""
    (found,) = evaluate_stretch(stretch(**changes), PRECISION)
    assert what in found.text
    assert not found.is_shown


@pytest.mark.parametrize("p99", [0.1, 40.0])
def test_a_short_stretch_has_no_tail_good_or_bad(p99: float) -> None:
    """Of 129 requests the 99th percentile is the second worst one: luck judges neither way."""
    short = stretch(
        ttft_error_ms=ErrorSpread(p50=0.1, p99=p99, n=129),
        ttft_bounds_ms=TOO_FEW,
        gap_error_ms=ErrorSpread(p50=0.02, p99=p99, n=8127),
        gap_bounds_ms=bounds(p99_low=p99 - 0.01, p99_high=p99 + 0.01),
        requests=129,
        chunks=8256,
        steady_s=4.1,
    )
    found = evaluate_stretch(short, PRECISION)
    assert [one.is_shown for one in found] == [False, False]
    assert found[0].text == (
        "the 99th percentile of first-token errors needs 170 more requests (10,880 chunks), "
        "6 s more at this load"
    )


def test_a_short_stretch_still_shows_a_client_that_is_gross() -> None:
    """A median, a lost request or half the rate need no thousand requests."""
    slow = stretch(
        ttft_error_ms=ErrorSpread(p50=5.0, p99=9.0, n=20),
        ttft_bounds_ms=msgspec.structs.replace(TOO_FEW, p50_low=4.0, missing=279),
        achieved_chunks_per_s=1000.0,
        requests=20,
        steady_s=1.0,
    )
    assert sum(one.is_shown for one in evaluate_stretch(slow, PRECISION)) == 2


def bound_late(count: int, late: int) -> ErrorBounds:
    """Return the bounds of first tokens, so many of which were read 5 ms late."""
    delays = [5 if index < late else 0 for index in range(count)]
    records = [read(f"r{i}", [10 + delay, 20 + delay], [1, 2]) for i, delay in enumerate(delays)]
    found = compare(records, [wrote(f"r{i}", [10, 20], [1, 2]) for i in range(count)]).ttft_bounds_ms
    assert found is not None
    return found


def test_bounds_need_299_requests_and_hold_the_truth() -> None:
    """0.99^299 is below 5 %, 0.99^298 is not; one late request of 300 shows no fault, eight of 301 do."""
    assert (bound_late(298, 0).missing, bound_late(298, 0).p99_high) == (1, None)
    assert (bound_late(299, 0).missing, bound_late(299, 0).p99_high) == (0, 0.0)
    assert (bound_late(300, 1).p99_low, bound_late(300, 1).p99_high) == (0.0, 5.0)
    assert bound_late(301, 8).p99_low == 5.0


def test_a_limit_that_is_none_is_no_limit() -> None:
    """At capacity the tails are not judged, so that two seconds are enough."""
    late = stretch(gap_error_ms=ErrorSpread(p50=0.01, p99=50.0, n=9), ttft_bounds_ms=TOO_FEW)
    assert evaluate_stretch(late, Limits(ttft_p99_ms=None, gap_p99_ms=None)) == ()


def test_the_ramp_and_the_end_are_outside_the_steady_part() -> None:
    """Rate and errors are those between the start of the last stream and the last request's sending."""
    records = [
        msgspec.structs.replace(
            read(f"r{index}", [10 * index + 5, 10 * index + 15], [1, 2], sent_ms=10 * index),
            scheduled_ns=10 * index * MS,
        )
        for index in range(6)
    ]
    assert find_steady_part(records, 2) == (10 * MS, 50 * MS)
    block = BlockRecord(
        block=0,
        load="x",
        arm="baseline",
        order=0,
        started_ns=0,
        ended_ns=100 * MS,
        completed=True,
        event_loop_lag_max_ns=2 * MS,
        client_cpu_s=0.05,
    )
    truth = [wrote(f"r{i}", [10 * i + 5, 10 * i + 15], [1, 2], received_ms=10 * i) for i in range(6)]
    found = make_stretch("x", records, truth, block, streams=2, offered_chunks_per_s=200.0, cpu_s=0.05)
    assert found.error.requests == 5
    assert found.achieved_chunks_per_s == pytest.approx(200.0)
    assert found.cpu_share == pytest.approx(0.5)
    assert found.cpu_s_per_1000_chunks == pytest.approx(0.05 / 12 * 1000)
    assert found.event_loop_lag_ms == 2.0


def test_too_few_requests_have_no_steady_part() -> None:
    """As many requests as streams never leave the ramp: there is no steady part."""
    records = [read(f"r{index}", [5, 15], [1, 2]) for index in range(2)]
    assert find_steady_part(records, 2) == (0, 0)
