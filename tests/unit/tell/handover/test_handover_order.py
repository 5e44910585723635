"""A journal that was re-ordered is told from one that was written."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from package_builders import build_lines
from tests.builders.records import MS_NS, build_block_record, build_record

from draftproof.core.records import BlockRecord, Judgement, Warmup
from draftproof.store.journal import encode_line
from draftproof.tell.handover.journal_order import JournalOrder, check_order, check_records, sort_as_written

LINES = list(build_lines())


def at(ms, *, arm="baseline", block=0, phase="measure"):
    return build_record(arm=arm, block=block, phase=phase, end_ns=ms * MS_NS, request_id=f"{arm}{block}{ms}")


def period(ms, *, arm="baseline", block=0, order=0):
    return build_block_record(arm=arm, block=block, order=order, ended_ns=ms * MS_NS)


def test_a_written_journal_is_in_order():
    """No restart and no fault in what a run writes."""
    assert check_records(LINES) == ([], [])


@given(st.tuples(st.integers(0, len(LINES) - 1), st.integers(0, len(LINES) - 1)))
def test_two_lines_that_change_places_are_found(places):
    """Wherever they are, near or far, requests or periods."""
    first, second = places
    moved = list(LINES)
    moved[first], moved[second] = moved[second], moved[first]
    restarts, faults = check_records(moved)
    assert bool(faults) == (first != second)
    assert restarts == [] or faults


@given(st.permutations(range(len(LINES))))
def test_a_shuffled_journal_is_found(order):
    """Any order but the one that was written has a fault."""
    _, faults = check_records([LINES[index] for index in order])
    assert bool(faults) == (list(order) != sorted(order))


def test_whole_periods_that_change_places_are_found():
    """A period moved as a block has times that fit a restart; its number gives it away."""
    size = len(LINES) // 3
    first, second, third = LINES[:size], LINES[size : 2 * size], LINES[2 * size :]
    assert check_records([*second, *first, *third])[1]
    assert check_records([*third, *first, *second])[1]


def test_blocks_that_change_places_are_found():
    """Blocks count up in a run."""
    assert check_records([at(1, block=1), period(2, block=1), at(3), period(4)])[1] == [
        (3, "block 0 comes after block 1")
    ]


def test_a_restart_between_periods_is_no_fault():
    """The client's machine was restarted, its clock began anew, the run went on where it was."""
    lines = [at(900), period(901), at(5, arm="candidate"), period(6, arm="candidate", order=1)]
    assert check_records(lines) == ([3], [])


def test_a_restart_inside_a_period_begins_with_a_warm_up():
    """An interrupted period is taken up again with its warm-up; without one a fall is a moved line."""
    again = [at(900), at(5, phase="warmup"), at(6), period(7)]
    assert check_records(again) == ([2], [])
    assert check_records([at(900), at(6), period(7)])[1] == [(2, "it ended before a line above it")]


@pytest.mark.parametrize("seed", range(3))
def test_tables_are_written_back_as_a_run_writes(seed):
    """Records that come from tables in another order are sorted into one that passes."""
    records = [one for one in LINES if not isinstance(one, BlockRecord)]
    periods = [one for one in LINES if isinstance(one, BlockRecord)]
    Random(seed).shuffle(records)  # noqa: S311 - a fixed disorder
    assert msgspec.json.encode(sort_as_written(records, periods)) == msgspec.json.encode(LINES)


@pytest.mark.parametrize(("apart_ms", "lag_ms", "is_moved"), [(4, 0, False), (6, 0, True), (60, 80, False)])
def test_requests_that_end_while_the_client_is_late_may_be_written_either_way(apart_ms, lag_ms, is_moved):
    """Ends are the kernel's, lines the client's: within a period they differ by its lag, and by no more."""
    own = msgspec.structs.replace(period(1000), event_loop_lag_max_ns=lag_ms * MS_NS)
    lines = [at(900), at(900 - apart_ms), own]
    assert check_records(lines) == ([], [(2, "it ended before a line above it")] if is_moved else [])


def warmed(lag_ms, *, block=0):
    lag_ns = None if lag_ms is None else lag_ms * MS_NS
    return Warmup(
        arm="baseline",
        load="low",
        block=block,
        start=1,
        started_ns=0,
        ended_ns=1,
        stable=True,
        tolerance=0.1,
        change=None,
        groups=(),
        end_lag_max_ns=lag_ns,
    )


@pytest.mark.parametrize(
    ("phase", "apart_ms", "noted_ms", "is_moved"),
    [
        ("warmup", 84, 80, False),  # the warm-up's own lateness, and 5 ms for one look at many sockets
        ("warmup", 86, 80, True),
        ("warmup", 25, 0, True),
        ("warmup", 25, None, False),  # an older run: by default 50 ms are not known
        ("warmup", 56, None, True),
        ("fill", 6, 80, True),  # what the warm-up was late does not excuse the period
        ("measure", 6, 80, True),
    ],
)
def test_a_warm_up_is_judged_by_its_own_lateness(tmp_path, phase, apart_ms, noted_ms, is_moved):
    """A client that is late while it warms an arm up writes what it then notes, in any order."""
    lines = [at(900, phase=phase), at(900 - apart_ms, phase=phase), end_noted(0)]
    faults = check_order(write_files(tmp_path, records=lines, warmups=[warmed(noted_ms)])).faults
    assert bool(faults) == is_moved


def end_noted(ms, *, block=0):
    return msgspec.structs.replace(period(1000, block=block), end_lag_max_ns=ms * MS_NS)


def test_what_a_period_notes_of_its_ends_counts_before_its_event_loop():
    """The loop is asked each 20 ms, what a line waited for is known of each."""
    lines = [at(900), at(860)]
    late = msgspec.structs.replace(end_noted(40), event_loop_lag_max_ns=0)
    assert check_records([*lines, late])[1] == []
    early = msgspec.structs.replace(end_noted(0), event_loop_lag_max_ns=40 * MS_NS)
    assert check_records([*lines, early])[1]


def followed(ms, sent_ms):
    """A request that was due as another ended at `ms`, and was sent at `sent_ms`."""
    return build_record(
        scheduled_ns=ms * MS_NS, sent_ns=sent_ms * MS_NS, end_ns=2000 * MS_NS, request_id=f"after {ms}"
    )


@pytest.mark.parametrize(("sent_ms", "is_moved"), [(861, True), (894, True), (896, False)])
def test_the_next_request_of_a_slot_tells_when_the_one_before_it_was_written(sent_ms, is_moved):
    """It was sent before the line above had ended: then that line cannot have been written first."""
    lines = [at(900), at(860), followed(860, sent_ms), period(3000)]
    late = msgspec.structs.replace(lines[-1], end_lag_max_ns=300 * MS_NS)
    assert bool(check_records([*lines[:-1], late])[1]) == is_moved


@pytest.mark.parametrize(("boots", "is_moved"), [("aa", True), ("ab", False), ((None, None), False)])
def test_a_clock_begins_anew_only_with_the_host(boots, is_moved):
    """Where the periods around a fall name one boot, it is a line that was moved."""
    first, second = (
        msgspec.structs.replace(period(ms, order=order, arm=arm), boot=boot)
        for ms, order, arm, boot in zip((901, 6), (0, 1), ("baseline", "candidate"), boots, strict=True)
    )
    lines = [at(900), first, at(5, arm="candidate"), second]
    assert check_records(lines) == (([], [(3, "it ended before a line above it")]) if is_moved else ([3], []))


def test_a_warm_up_that_was_moved_behind_the_fill_is_no_restart():
    """A clock that began anew is below all of the period, not only below the last line."""
    warm = [at(ms, phase="warmup") for ms in (100, 200, 300)]
    lines = [*warm[:2], at(900, phase="fill"), warm[2], at(1000), period(1100)]
    assert check_records(lines) == ([], [(4, "it ended before a line above it")])


def test_lines_that_were_turned_round_are_found_however_close_they_are():
    """Each is within the lateness of the one above it, and not of the first."""
    turned = [at(900 - 4 * number) for number in range(5)]
    assert [line for line, _ in check_records([*turned, end_noted(0)])[1]] == [3, 5]


def test_a_period_without_a_line_of_its_own_may_be_as_late_as_the_run_was():
    """A run that was killed says nothing of its last period."""
    lines = [at(100), end_noted(300), at(1900, block=1), at(1600, block=1)]
    assert check_records(lines) == ([], [])
    assert check_records([at(100), end_noted(0), *lines[2:]])[1] == [(4, "it ended before a line above it")]


def test_a_part_of_a_period_is_judged_by_the_lag_in_the_periods_own_line(tmp_path):
    """Load workers write requests, the program the period: its lag holds for their files, no restart."""
    own = msgspec.structs.replace(period(1000), event_loop_lag_max_ns=80 * MS_NS)
    for name, lines in (("records", [own]), ("records-w0", [at(900), at(840, phase="fill")])):
        text = b"".join(encode_line(line) + b"\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_bytes(text)
    assert check_order(tmp_path) == JournalOrder(restarts=(), faults=())


def write_files(folder, **files):
    """Write a journal of several files."""
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_bytes(b"".join(encode_line(line) + b"\n" for line in lines))
    return folder


@pytest.mark.parametrize("place", range(len(LINES)))
def test_a_line_that_stands_there_twice_in_a_row_is_found(tmp_path, place):
    """A request or a period's own line, copied to the line below it: no time falls, so order is blind."""
    twice = [*LINES[: place + 1], *LINES[place:]]
    faults = check_order(write_files(tmp_path, records=twice)).faults
    assert any("stands there a second time" in fault for fault in faults)
    assert any(f"records.jsonl:{place + 2}: " in fault and f".jsonl:{place + 1}" in fault for fault in faults)


def test_a_request_in_the_files_of_two_workers_is_found(tmp_path):
    """Files are joined when they are read, so they are looked at together."""
    own, theirs = [at(1), at(2)], [at(2), at(3)]
    faults = check_order(write_files(tmp_path, **{"records-w0": own, "records-w1": theirs})).faults
    assert len(faults) == 1
    assert faults[0].endswith("records-w0.jsonl:2")


def test_a_request_with_two_outcomes_is_found(tmp_path):
    """Asked again, it would have had no first record: one of the two is not the run's."""
    other = msgspec.structs.replace(at(2), outcome="cut", end_ns=3 * MS_NS)
    assert check_order(write_files(tmp_path, records=[at(1), at(2), other])).faults


def test_what_a_resumed_run_writes_again_is_no_repeat(tmp_path):
    """A request that was stopped is asked again; a period that was broken off has a line for each part."""
    stopped = [msgspec.structs.replace(at(ms, phase="interrupted"), request_id="r") for ms in (10, 20)]
    broken = msgspec.structs.replace(period(21), completed=False)
    lines = [*stopped, broken, msgspec.structs.replace(at(30), request_id="r"), period(31)]
    assert check_order(write_files(tmp_path, records=lines)).faults == ()


def test_judgements_probes_and_warm_ups_are_looked_at_too(tmp_path):
    """A judge's answer that is copied would be one more vote."""
    one = Judgement(
        request_id="r",
        item_id="i",
        check=0,
        kind="judge",
        passed=True,
        detail="",
        by="judge",
        source_sha256="s",
        answer_sha256="a",
    )
    again = msgspec.structs.replace(one, attempt=1)
    assert check_order(write_files(tmp_path, judgements=[one, again])).faults == ()
    faults = check_order(write_files(tmp_path, judgements=[one, again, again])).faults
    assert [fault.partition(": ")[2] for fault in faults] == [
        f"this judgement stands there a second time, the first is at {tmp_path.name}/judgements.jsonl:2"
    ]
