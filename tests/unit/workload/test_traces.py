"""Reading recorded arrivals: three public formats and our own, and refusals with the line's number."""

import pytest

from draftproof.errors import WorkloadError
from draftproof.workload.traces import TracedArrival, compress, read_trace

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
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 12, "output_length": 3, "hash_ids": [46]}\n'
)
OWN = (
    '{"at_s": 1.5, "item_id": "a", "class": "chat"}\n\n'
    '{"at_s": 1.25, "prompt_tokens": 3, "output_tokens": 4}\n'
)


def test_azure_times_keep_their_seven_digits() -> None:
    """Tenths of a microsecond of the trace are kept, and the first arrival is at 0."""
    assert read_trace(AZURE) == (
        TracedArrival(due_ns=0, line=2, prompt_tokens=374, output_tokens=44),
        TracedArrival(due_ns=4_314_579_000, line=3, prompt_tokens=396, output_tokens=109),
    )


def test_azure_times_may_carry_an_offset() -> None:
    """The later release writes an offset from UTC behind the time."""
    assert [one.due_ns for one in read_trace(AZURE_WITH_OFFSET)] == [0, 7_405_000]


def test_times_of_two_zones_are_of_one_moment() -> None:
    """A trace over the end of summer time, or from two places: offsets count, none is UTC."""
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2024-05-10 {time},1,1\n" for time in ("02:00:00.5+02:00", "00:00:00", "00:00:01+00:00")
    )
    assert [(one.due_ns, one.line) for one in read_trace(text)] == [
        (0, 3), (500_000_000, 2), (1_000_000_000, 4),
    ]  # fmt: skip


def test_burstgpt_is_read_in_seconds() -> None:
    """BurstGPT counts seconds and names a log type, which becomes the class."""
    first, second = read_trace(BURSTGPT)
    assert (second.due_ns, second.prompt_tokens, second.output_tokens) == (40_000_000_000, 1087, 230)
    assert (first.traffic_class, second.traffic_class) == ("Conversation log", "API log")


def test_mooncake_is_read_in_milliseconds() -> None:
    """Mooncake counts milliseconds and tells which blocks of prompts are shared."""
    first, second = read_trace(MOONCAKE)
    assert second.due_ns == 3_053_000_000
    assert (first.shared_blocks, second.shared_blocks) == ((46, 47), (46,))


def test_own_lines_are_put_in_order_and_may_leave_things_out() -> None:
    """Lines may stand in any order; what they do not tell is None."""
    assert read_trace(OWN) == (
        TracedArrival(due_ns=0, line=3, prompt_tokens=3, output_tokens=4),
        TracedArrival(due_ns=250_000_000, line=1, item_id="a", traffic_class="chat"),
    )


def test_a_faster_replay_keeps_order_and_lengths() -> None:
    """Ten times as fast divides every time by ten and nothing else."""
    fast = compress(read_trace(AZURE), 10)
    assert [(one.due_ns, one.prompt_tokens) for one in fast] == [(0, 374), (431_457_900, 396)]


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        (AZURE.replace(",109", ",10.5"), "t:3", "no number of tokens"),
        (AZURE.replace("2023-11-16 18:15:50", "yesterday"), "t:3", "yesterday"),
        (BURSTGPT.replace("45,", "nan,"), "t:3", "no time"),
        (MOONCAKE.replace('"output_length": 3, ', ""), "t:2", "'output_length' is missing"),
        (MOONCAKE + "{", "t:3", "no JSON"),
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


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
def test_a_speed_must_be_positive(speed: float) -> None:
    """A replay speed of 0, below, or without a value is refused."""
    with pytest.raises(ValueError, match="speed"):
        compress(read_trace(AZURE), speed)


AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST_HEAD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (AZURE_HEAD + '"' + "x" * 200_000 + '",5,5\n', ":2", "no CSV: field larger"),
        (AZURE_HEAD + "2023-11-16 18:15:46,10,1e18\n", ":2", "no number of tokens"),
        (BURST_HEAD + "1e300,ChatGPT,5,5,10,x\n", ":2", "no time"),
        (BURST_HEAD + "0,ChatGPT,5,5,10,x\n1e10,ChatGPT,5,5,10,x\n", ":3", "1,000,000,000 s at most"),
        ('{"timestamp": 1e303, "input_length": 6, "output_length": 5}\n', ":1", "no time"),
        (f'{{"timestamp": {10**400}, "input_length": 6, "output_length": 5}}\n', ":1", "too large"),
        ('{"timestamp": 1, "input_length": true, "output_length": 5}\n', ":1", "no number of tokens"),
        ('{"timestamp": 1, "input_length": 6, "output_length": 5, "hash_ids": [1e400]}\n', ":1", "infinity"),
        ('{"timestamp": 1, "input_length": 6, "output_length": 5, "hash_ids": "46"}\n', ":1", "no list"),
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
    assert [one.line for one in read_trace("\n" + AZURE)] == [3, 4]
    (own,) = read_trace('\n{"at_s": 0, "class": "a\u2028b"}\n')
    assert (own.line, own.traffic_class) == (2, "a\u2028b")
