"""Reading recorded arrivals: three public formats and our own, and refusals with the line's number."""

import json
from pathlib import Path

import pytest

from draftproof.core.errors import WorkloadError
from draftproof.workload.moments import Units, read_date
from draftproof.workload.reader import load_workload
from draftproof.workload.traces import TracedArrival, read_trace

FILES = Path(__file__).parents[2] / "fixtures" / "files"
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_WITH_OFFSET = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,API log
"""
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 955, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 12, "output_length": 3, "hash_ids": [46]}\n'
)
OWN = (
    '{"at_s": 1.5, "item_id": "a", "class": "chat"}\n\n'
    '{"at_s": 1.25, "prompt_tokens": 3, "output_tokens": 4}\n'
)


def test_azure_times_keep_their_seven_digits() -> None:
    """Tenths of a microsecond of the trace are kept, and the first arrival is at 0."""
    assert read_trace(AZURE).arrivals == (
        TracedArrival(due_ns=0, line=2, prompt_tokens=374, output_tokens=44),
        TracedArrival(due_ns=4_314_579_000, line=3, prompt_tokens=396, output_tokens=109),
    )


def test_azure_times_may_carry_an_offset() -> None:
    """The later release writes an offset from UTC behind the time."""
    assert [one.due_ns for one in read_trace(AZURE_WITH_OFFSET).arrivals] == [0, 7_405_000]


def test_times_of_two_zones_are_of_one_moment() -> None:
    """A trace over the end of summer time, or from two places: offsets count."""
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2024-05-10 {time},1,1\n" for time in ("02:00:00.5+02:00", "00:00:00Z", "00:00:01+00:00")
    )
    assert [(one.due_ns, one.line) for one in read_trace(text).arrivals] == [
        (0, 3), (500_000_000, 2), (1_000_000_000, 4),
    ]  # fmt: skip


def test_burstgpt_is_read_in_seconds() -> None:
    """BurstGPT counts seconds and names a log type, which becomes the class."""
    first, second = read_trace(BURSTGPT).arrivals
    assert (second.due_ns, second.prompt_tokens, second.output_tokens) == (40_000_000_000, 1087, 230)
    assert (first.traffic_class, second.traffic_class) == ("Conversation log", "API log")


@pytest.mark.parametrize(
    ("unit", "due_ns"), [("s", 3_053_000_000_000), ("ms", 3_053_000_000), ("us", 3_053_000), ("ns", 3053)]
)
def test_mooncake_is_read_in_the_unit_of_the_plan(unit, due_ns) -> None:
    """Its keys are those of other tools in other units, and its lengths tell the size of a block."""
    first, second = read_trace(MOONCAKE, units=Units(timestamp=unit)).arrivals
    assert second.due_ns == due_ns
    assert (first.shared_blocks, second.shared_blocks) == ((46, 47), (46,))
    assert {first.block_tokens, second.block_tokens} == {512}


def test_the_handed_trace_in_seconds_is_read_in_seconds() -> None:
    """Qwen-Bailian's keys tell it from Mooncake's: seconds, and blocks of 16 tokens."""
    trace = read_trace((FILES / "trace-seconds.jsonl").read_text())
    assert [one.due_ns / 1e9 for one in trace.arrivals] == [0, 0.731, 2.114, 3.9, 5.2, 6.0]
    assert {one.block_tokens for one in trace.arrivals} == {16}
    assert [one.traffic_class for one in trace.arrivals][:2] == ["text", "search"]
    assert trace.unused == ("chat_id", "parent_chat_id", "turn")


def test_a_trace_in_seconds_without_a_part_of_one_may_be_in_milliseconds() -> None:
    """Columns say the unit of the published file, not that of a copy of it; the plan does."""
    lines = [json.loads(line) for line in (FILES / "trace-seconds.jsonl").read_text().splitlines()]
    copy = "\n".join(json.dumps(one | {"timestamp": round(one["timestamp"] * 1000)}) for one in lines)
    with pytest.raises(WorkloadError, match=r"Fix: state workload\.timestamp_unit"):
        read_trace(copy)
    arrivals = read_trace(copy, units=Units(timestamp="ms")).arrivals
    assert [one.due_ns / 1e9 for one in arrivals] == [0, 0.731, 2.114, 3.9, 5.2, 6.0]


@pytest.mark.parametrize(
    "text",
    [
        MOONCAKE,
        '{"timestamp": 0.5, "prompt_tokens": 3}',
        '{"timestamp": 27, "input_length": 3, "output_length": 1}',
    ],
)
def test_a_bare_number_is_no_time_until_the_plan_says_its_unit(text) -> None:
    """Neither seconds nor milliseconds are guessed; the sentence names the key."""
    with pytest.raises(WorkloadError, match=r"Fix: state workload\.timestamp_unit"):
        read_trace(text)
    assert read_trace(text, units=Units(timestamp="ms")).arrivals


def test_seconds_since_1970_say_their_unit() -> None:
    """Their size does, from 2001 to 2286, and only theirs."""
    text = "".join(f'{{"timestamp": {1767225600 + n}.25, "prompt_tokens": 3}}\n' for n in range(2))
    assert [one.due_ns for one in read_trace(text).arrivals] == [0, 1_000_000_000]
    for value, unit in ((1.7e12, "milliseconds"), (1.7e15, "microseconds"), (1.7e18, "nanoseconds")):
        with pytest.raises(WorkloadError, match=f"would be in {unit}"):
            read_trace(f'{{"timestamp": {value}, "prompt_tokens": 3}}')


def test_whole_nanoseconds_are_exact() -> None:
    """A number of 19 digits loses none of them."""
    text = "".join(f'{{"timestamp": {1767225600123456789 + n}, "prompt_tokens": 3}}\n' for n in (0, 7))
    assert [one.due_ns for one in read_trace(text, units=Units(timestamp="ns")).arrivals] == [0, 7]


@pytest.mark.parametrize(
    ("rows", "fits"),
    [
        ([(6758, 14), (1053, 3)], "512"),
        ([(40, 3), (44, 3), (60, 4)], "16"),
        ([(40, 2), (70, 4)], "16"),
        ([(5, 1)], "8, 16, 32"),
        ([(5000, 1), (5000, 3)], "no power of two fits"),
    ],
)
def test_the_size_of_a_block_is_told_by_the_lengths_or_by_the_plan(rows, fits) -> None:
    """One power of two fits every prompt, its last block named or not; else the plan has to say it."""
    lines = [
        {"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": [*range(m)]} for n, m in rows
    ]
    text = "\n".join(map(json.dumps, lines))
    if fits.isdigit():
        assert read_trace(text, units=Units(timestamp="s")).arrivals[0].block_tokens == int(fits)
        return
    with pytest.raises(WorkloadError, match=fits) as raised:
        read_trace(text, units=Units(timestamp="s"))
    assert str(raised.value.place).endswith("workload.block_tokens")


def test_a_size_that_does_not_fit_is_refused() -> None:
    """Blocks of 16, vLLM's default, make prompts 32 times too short, with every count looking right."""
    with pytest.raises(WorkloadError, match="955 tokens has 60 blocks of 16, and hash_ids names 2") as raised:
        read_trace(MOONCAKE, "t", Units(timestamp="ms", block_tokens=16))
    assert raised.value.place == "t:1"


@pytest.mark.parametrize(
    ("text", "units", "key"),
    [
        (AZURE, Units(timestamp="s"), "workload.timestamp_unit"),
        (BURSTGPT, Units(timestamp="ms"), "workload.timestamp_unit"),
        (OWN, Units(timestamp="s"), "workload.timestamp_unit"),
        (OWN, Units(block_tokens=16), "workload.block_tokens"),
    ],
)
def test_a_key_that_the_file_does_not_need_is_refused(text, units, key) -> None:
    """Nothing that a plan states is without effect."""
    with pytest.raises(WorkloadError, match="Fix: leave") as raised:
        read_trace(text, "t", units)
    assert raised.value.place == f"t, {key}"


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("2026-03-02 10:00:00,120", 120_000_000),
        ("2026-03-02T10:00:00.1", 100_000_000),
        ("2026-03-02 10:00:00.1234567", 123_456_700),
        ("2026-03-02 10:00:00,1234567899", 123_456_789),
        ("20260302T100000.5", 500_000_000),
        ("2026-03-02 10:00", 0),
    ],
)
@pytest.mark.parametrize("zone", ["", "Z", "+00:00", " +0000", "-00", " UTC"])
def test_every_fraction_and_offset_is_read(written, ns, zone) -> None:
    """A point or a comma, any number of digits, and the ways in which logs write UTC."""
    moment = read_date(written + zone)
    assert moment.ns == 1_772_445_600_000_000_000 + ns
    assert moment.form == ("zoned" if zone else "local")


@pytest.mark.parametrize(
    "written",
    [
        "2026-03-02",
        "2026-03-02T23:59:60Z",
        "2026-03-02 10:00.5",
        "02/Mar/2026:10:00:00 +0000",
        "2026-03-02 10:00:00,",
        "10:00:00",
    ],
)
def test_a_date_that_loses_something_is_refused(written) -> None:
    """A day without its time, and forms that are not known."""
    with pytest.raises(ValueError, match="no date and time"):
        read_date(written)


def test_the_handed_log_keeps_its_milliseconds() -> None:
    """Python's own logging writes a comma before them."""
    items = load_workload(FILES / "comma-fraction.jsonl").items
    assert [item.due_ns for item in items] == [0, 360_000_000, 870_000_000, 1_630_000_000, 2_380_000_000]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('"2026-03-02 10:00:00"', '"2026-03-02 10:00:01Z"'),
        ('"2026-03-02 10:00:00+02:00"', '"2026-03-02 10:00:01"'),
        ('"2026-03-02 10:00:00"', "1772445601"),
        ("1772445600", '"2026-03-02 10:00:01Z"'),
    ],
)
@pytest.mark.parametrize("rest", ['"prompt_tokens": 3', '"messages": [{"role": "user", "content": "a"}]'])
def test_times_of_two_forms_are_refused(tmp_path, first, second, rest) -> None:
    """Dates with and without an offset, and dates beside numbers, have no common origin."""
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"timestamp": {at}, {rest}}}\n' for at in (first, second)))
    with pytest.raises(WorkloadError, match="in one form") as raised:
        load_workload(path)
    assert raised.value.place == f"{path}:2"


@pytest.mark.parametrize(
    "text",
    [
        AZURE + "2023-11-16 18:16:00,5,6,7\n",
        AZURE.replace("TIMESTAMP,", "TIMESTAMP,ContextTokens,"),
    ],
)
def test_a_table_with_more_than_its_columns_is_refused(text) -> None:
    """A cell without a column of its own would be dropped."""
    with pytest.raises(WorkloadError, match="more cells than columns"):
        read_trace(text)


def test_own_lines_are_put_in_order_and_may_leave_things_out() -> None:
    """Lines may stand in any order; what they do not tell is None."""
    assert read_trace(OWN).arrivals == (
        TracedArrival(due_ns=0, line=3, prompt_tokens=3, output_tokens=4),
        TracedArrival(due_ns=250_000_000, line=1, item_id="a", traffic_class="chat"),
    )


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        (AZURE.replace(",109", ",10.5"), "t:3", "no number of tokens"),
        (AZURE.replace("2023-11-16 18:15:50", "yesterday"), "t:3", "yesterday"),
        (BURSTGPT.replace("45,", "nan,"), "t:3", "no time"),
        (OWN.replace('"at_s": 1.25, ', ""), "t:3", "'at_s' is missing"),
        (OWN + "{", "t:4", "no JSON"),
        (OWN + '{"at_s": 1, "at_s": 2}', "t:4", "'at_s' stands twice"),
        (OWN + "[1]", "t:4", "no JSON object"),
        ("when,what\n1,2\n", "t:1", "none of the known forms"),
        ("", "t:1", "none of the known forms"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t", "no arrival"),
    ],
)
def test_a_trace_that_cannot_be_read_names_its_line(text: str, place: str, what: str) -> None:
    """A broken trace ends with the number of the line and what is wrong with it; no line is left out."""
    with pytest.raises(WorkloadError, match=what) as raised:
        read_trace(text, "t")
    assert raised.value.place == place


AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST_HEAD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (AZURE_HEAD + '"' + "x" * 200_000 + '",5,5\n', ":2", "no CSV: field larger"),
        (AZURE_HEAD + "2023-11-16 18:15:46,10,1e18\n", ":2", "no number of tokens"),
        (BURST_HEAD + "1e300,ChatGPT,5,5,10,x\n", ":2", "no time"),
        (BURST_HEAD + "0,ChatGPT,5,5,10,x\n1e10,ChatGPT,5,5,10,x\n", ":3", "1,000,000,000 s at most"),
        ('{"at_s": 1e303, "input_length": 6, "output_length": 5}\n', ":1", "milliseconds"),
        (f'{{"at_s": {10**400}, "input_length": 6, "output_length": 5}}\n', ":1", "milliseconds"),
        ('{"at_s": 1, "input_length": true, "output_length": 5}\n', ":1", "no number of tokens"),
        (
            '{"at_s": 1, "input_length": 6, "output_length": 5, "hash_ids": [1e400]}\n',
            ":1",
            "no list of whole",
        ),
        ('{"at_s": 1, "input_length": 6, "output_length": 5, "hash_ids": "46"}\n', ":1", "no list"),
        ('{"at_s": 1}\n' + "[" * 200_000 + "\n", ":2", "nested too deeply"),
        (f'{{"at_s": 1, "prompt_tokens": {10**400}}}\n', ":1", "too large"),
        ('{"at_s": 1, "item_id": "\\ud800"}\n', ":1", "no valid text"),
        ('{"at_s": 1, "class": "\\ud800"}\n', ":1", "no valid text"),
        ('{"at_s": 1, "item_id": {"a": 1}}\n', ":1", "no text"),
    ],
)
def test_a_line_that_no_trace_has_is_refused_with_its_number(text, place, said) -> None:
    """Numbers beyond every range, broken quotes, halves of characters: one sentence, never a traceback."""
    with pytest.raises(WorkloadError, match=said) as refused:
        read_trace(text, "t")
    assert refused.value.place == f"t{place}"
    assert len(str(refused.value)) < 300


def test_blank_lines_before_and_separators_within_are_no_lines() -> None:
    """A file may begin with blank lines; U+2028 inside a text ends no line of JSON."""
    assert [one.line for one in read_trace("\n" + AZURE).arrivals] == [3, 4]
    (own,) = read_trace('\n{"at_s": 0, "class": "a\u2028b"}\n').arrivals
    assert (own.line, own.traffic_class) == (2, "a\u2028b")
