"""Traces as workloads: recorded times and lengths, invented prompts that say so, windows of a trace."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.errors import WorkloadError
from draftproof.workload.moments import Units
from draftproof.workload.reader import load_workload
from draftproof.workload.recordings import Window, cap_evidence, cut, has_filler, make_filler

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,API log
"""
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 955, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 12, "output_length": 3, "hash_ids": [46]}\n'
)
MS = Units(timestamp="ms")
LOG: list[dict[str, object]] = [
    {"at_s": 4, "messages": [{"role": "user", "content": "later"}], "output_tokens": 9, "class": "chat"},
    {"at_s": 3, "id": "x", "conversations": [{"from": "human", "value": "hi"}], "prompt_tokens": 2},
]


def write(folder, text, name="trace.jsonl"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def write_lines(folder, *lines):
    return write(folder, "".join(json.dumps(line) + "\n" for line in lines))


def words_of(item):
    return item.messages[0].content.split(" ")


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        (AZURE, "t.csv", [(0, 44, 374), (4_314_579_000, 109, 396)]),
        (BURSTGPT, "any.txt", [(0, 18, 472), (40_000_000_000, 230, 1087)]),
        (MOONCAKE, "t.jsonl", [(0, 52, 955), (3_053_000_000, 3, 12)]),
    ],
)
def test_a_public_trace_is_a_workload(tmp_path, text, name, wanted):
    """Times, limits and prompts of the recorded lengths, whatever the file is called."""
    items = load_workload(write(tmp_path, text, name), units=MS if text == MOONCAKE else None).items
    assert [(item.due_ns, item.max_tokens, len(words_of(item))) for item in items] == wanted
    assert has_filler(items)


def test_lengths_and_classes_are_labels(tmp_path):
    """So cells can be formed of them; requests are named by their lines."""
    first, second = load_workload(write(tmp_path, BURSTGPT)).items
    assert first.segments == {
        "task": "recorded", "class": "Conversation log", "prompt_length": "256-1023",
        "answer_length": "0-63", "prompts": "filler",
    }  # fmt: skip
    assert second.segments["prompt_length"] == "1024-4095"
    assert (first.id, second.id) == ("r00000002", "r00000003")


def test_a_failed_request_keeps_its_arrival(tmp_path):
    """An answer of no token is asked for one."""
    items = load_workload(write(tmp_path, AZURE.replace(",44", ",0"))).items
    assert (len(items), items[0].max_tokens) == (2, 1)


def test_prompts_share_what_the_trace_says_they_share(tmp_path):
    """Two Mooncake prompts begin alike for as many blocks as agree in identity, and differ from there."""
    rows = [(1200, [1, 2, 3]), (1500, [1, 2, 9]), (700, [8, 2]), (1024, [1, 2])]
    text = "".join(
        json.dumps({"timestamp": 0, "input_length": length, "output_length": 5, "hash_ids": ids}) + "\n"
        for length, ids in rows
    )
    first, second, other, whole = map(words_of, load_workload(write(tmp_path, text), units=MS).items)
    assert first[:1024] == second[:1024] == whole
    assert first[1024:1030] != second[1024:1030]
    assert other[:6] != first[:6]
    assert other[512:] == first[512:700]
    assert [len(one) for one in (first, second, other)] == [1200, 1500, 700]


def test_prompts_without_blocks_begin_differently():
    """No two of a thousand share their first eight words: no cache may find what was not recorded."""
    assert len({tuple(make_filler(8, f"r{number}").split()) for number in range(1000)}) == 1000


def test_filler_is_the_same_everywhere():
    """The words are pinned: another machine or version must ask the very same."""
    assert make_filler(6, "r00000002") == make_filler(9, "r00000002").rsplit(" ", 3)[0]
    assert make_filler(5, "a") == "major process level table flow"
    assert make_filler(5, "a", [7], 512) == "rule quick measure what remove"


def test_recorded_requests_keep_their_prompts(tmp_path):
    """Any known form with a time: order by time, ids by line where there are none, labels, recorded limit."""
    first, second = load_workload(write_lines(tmp_path, *LOG)).items
    assert (first.id, first.due_ns, first.messages[0].content) == ("x", 0, "hi")
    assert (second.id, second.due_ns, second.max_tokens) == ("r00000001", 1_000_000_000, 9)
    assert second.segments == {"task": "unlabelled", "class": "chat", "answer_length": "0-63"}
    assert not has_filler((first, second))


def test_a_stated_limit_and_label_win_over_recorded_ones(tmp_path):
    """`max_tokens` and `segments` of a line are its author's."""
    line = LOG[0] | {"max_tokens": 3, "segments": {"class": "batch"}}
    (item,) = load_workload(write_lines(tmp_path, line)).items
    assert (item.max_tokens, item.segments["class"]) == (3, "batch")


def test_a_batch_request_may_have_a_time(tmp_path):
    """The OpenAI batch form too, with a date and time."""
    body = {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 7}
    line = {"custom_id": "b", "url": "/v1/chat/completions", "body": body}
    (one, two) = load_workload(
        write_lines(
            tmp_path,
            line | {"timestamp": "2026-01-02T03:04:05.5Z", "output_tokens": 50},
            line | {"custom_id": "c", "timestamp": "2026-01-02 03:04:07Z"},
        )
    ).items
    assert (one.max_tokens, one.due_ns, two.due_ns) == (7, 0, 1_500_000_000)


def test_follow_ups_of_a_recorded_conversation_stay(tmp_path):
    """Later turns belong to the item; only its opening has a time."""
    (item,) = load_workload(write_lines(tmp_path, LOG[0] | {"follow_ups": [{"content": "more"}]})).items
    assert (item.turns, item.due_ns) == (2, 0)


@pytest.mark.parametrize(
    ("window", "lines"),
    [
        (Window(), [2, 3, 4, 5]),
        (Window(start_s=10), [3, 4, 5]),
        (Window(start_s=10, duration_s=20), [3, 4]),
        (Window(start_s=10, duration_s=10), [3]),
        (Window(start_s=5, requests=2), [3, 4]),
        (Window(duration_s=15, requests=9), [2, 3]),
    ],
)
def test_a_window_takes_its_part(tmp_path, window, lines):
    """From `start_s` on, before its end, at most so many; the items are those of the whole trace."""
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2024-01-01 00:00:{second:02},9,5\n" for second in (0, 10, 20, 30)
    )
    path = write(tmp_path, text)
    every = {item.id: item for item in load_workload(path).items}
    taken = load_workload(path, window).items
    assert [item.id for item in taken] == [f"r{line:08}" for line in lines]
    assert all(every[item.id] == item for item in taken)


def test_the_hash_is_that_of_the_window(tmp_path):
    """Two windows are two workloads; the same window is the same one."""
    path = write(tmp_path, AZURE)
    one = load_workload(path, Window(requests=1))
    assert one.sha256 == load_workload(path, Window(duration_s=1)).sha256 != load_workload(path).sha256


def test_a_window_cuts_recorded_requests_too(tmp_path):
    """Lines with prompts are cut by the same rule."""
    (item,) = load_workload(write_lines(tmp_path, *LOG), Window(start_s=0.5)).items
    assert item.messages[0].content == "later"


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 10**10), min_size=1, max_size=30),
    st.floats(0, 12),
    st.one_of(st.none(), st.floats(0.001, 12)),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_a_window_is_what_a_filter_would_take(times, start_s, duration_s, requests):
    """Any window takes exactly the arrivals at or after its start and before its end, the earliest first."""
    due_ns = sorted(time - min(times) for time in times)
    start_ns = round(start_s * 1e9)
    end_ns = float("inf") if duration_s is None else start_ns + round(duration_s * 1e9)
    wanted = [due for due in due_ns if start_ns <= due < end_ns][:requests]
    window = Window(start_s=start_s, duration_s=duration_s, requests=requests)
    if wanted:
        assert due_ns[cut(due_ns, window, "t")] == wanted
    else:
        with pytest.raises(WorkloadError, match="in the window"):
            cut(due_ns, window, "t")


def test_invented_words_are_no_representative_sample(tmp_path):
    """What the plan claims is lowered for a trace without prompts, and only for that."""
    filler = load_workload(write(tmp_path, AZURE)).items
    own = load_workload(write_lines(tmp_path, *LOG)).items
    assert [cap_evidence(one, filler) for one in ("representative", "pilot", "synthetic", "smoke")] == [
        "synthetic", "synthetic", "synthetic", "smoke",
    ]  # fmt: skip
    assert [cap_evidence(one, own) for one in ("representative", "pilot")] == ["representative", "pilot"]


ITEM = {"id": "a", "messages": [{"role": "user", "content": "Hi"}], "segments": {}}


@pytest.mark.parametrize(
    ("lines", "window", "place", "what"),
    [
        ([LOG[0], ITEM], None, ":2", "has no time"),
        ([LOG[0] | {"timestamp": 4}], None, ":1", "two times"),
        ([{"timestamp": 1.7e12} | LOG[1] | {"at_s": None}], None, ":1", "milliseconds"),
        ([LOG[0] | {"at_s": 1.7e12}], None, ":1", "milliseconds"),
        ([LOG[0] | {"at_s": True}], None, ":1", "no time"),
        ([LOG[0] | {"due_ns": 3}], None, ":1", "due_ns beside"),
        ([LOG[0] | {"class": 3}], None, ":1", "no text"),
        ([LOG[0] | {"output_tokens": 1.5}], None, ":1", "no number of tokens"),
        ([LOG[0] | {"token": 1}], None, ":1", "unknown field"),
        ([ITEM | {"due_ns": -1}], None, ":1", "due_ns must be 0 or more"),
        ([ITEM], Window(requests=1), "workload.window", "have no times"),
        ([{"at_s": 1, "output_tokens": 3}], None, ":1", "neither a prompt nor prompt_tokens"),
        ([{"at_s": 1, "promt_tokens": 3}], None, ":1", "'promt_tokens' is not one of"),
        ([{"at_s": 1, "prompt_tokens": 3}, LOG[0]], None, ":2", "first line has no prompt"),
        ([{"at_s": 1, "prompt_tokens": 10**8}], None, "", "at most 50,000,000 can be made up"),
        ([{"at_s": n, "prompt_tokens": 1, "item_id": "a"} for n in (1, 2)], None, ":2", "used at line 1"),
    ],
)
def test_a_recording_that_cannot_be_used_names_place_and_reason(tmp_path, lines, window, place, what):
    """One sentence with the line, for every way in which a recording can be wrong."""
    path = write_lines(tmp_path, *lines)
    with pytest.raises(WorkloadError, match=what) as raised:
        load_workload(path, window)
    assert str(raised.value.place).startswith(str(path))
    assert str(raised.value.place).endswith(place)
    assert raised.value.fix


@pytest.mark.parametrize(
    ("raw", "place", "what"),
    [
        (b"when,what\n1,2\n", ":1", "none of the known forms"),
        (AZURE.encode() + b"2023-11-16 18:16:00,\xff,1\n", ":4", "not valid UTF-8"),
        (AZURE.encode() + b"2023-11-16 18:16:00,5\n", ":4", "'GeneratedTokens' is missing"),
    ],
)
def test_a_csv_file_that_is_no_trace_says_so(tmp_path, raw, place, what):
    """A table of another kind is told by its columns, not taken for broken JSON."""
    path = tmp_path / "t.csv"
    path.write_bytes(raw)
    with pytest.raises(WorkloadError, match=what) as raised:
        load_workload(path)
    assert raised.value.place == f"{path}{place}"


def test_a_byte_order_mark_and_quoted_columns_do_not_hide_a_trace(tmp_path):
    """What a spreadsheet writes is read too."""
    path = tmp_path / "t.csv"
    text = AZURE.replace("TIMESTAMP,ContextTokens", '"TIMESTAMP","ContextTokens"').replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert len(load_workload(path).items) == 2


def test_a_hundred_thousand_arrivals_are_cut_before_words_are_made(tmp_path):
    """A window of a long trace makes the words of the window alone."""
    text = "Timestamp,Request tokens,Response tokens\n" + "".join(f"{n},100000,1\n" for n in range(20_000))
    assert len(load_workload(write(tmp_path, text), Window(start_s=5000, requests=3)).items) == 3
