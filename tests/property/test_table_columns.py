"""Columns built field by field hold what rows hold, at every depth and wherever something is missing."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.records import build_record

from draftproof.core.records import Chunk, RequestRecord, Round, SpecCounts, ToolCall
from draftproof.store.tables import load_table, save_table

WHOLE = st.integers(-(2**62), 2**62)
COUNTS = st.builds(SpecCounts, WHOLE, WHOLE, WHOLE, st.lists(WHOLE, max_size=2).map(tuple))
CHUNKS = st.lists(st.builds(Chunk, WHOLE, st.none() | WHOLE), max_size=3).map(tuple)
ROUNDS = st.lists(st.builds(Round, *[WHOLE] * 9), max_size=2).map(tuple)
MARGINS = st.lists(st.none() | st.floats(allow_nan=False), max_size=3).map(tuple)
CALLS = st.lists(st.builds(ToolCall, st.text(max_size=3), st.text(max_size=3)), max_size=2).map(tuple)
RECORDS = st.builds(
    lambda chunks, **fields: build_record(chunks=chunks, **fields),
    chunks=CHUNKS,
    speculation=st.none() | COUNTS,
    rounds=st.none() | ROUNDS,
    top_two_margins=st.none() | MARGINS,
    token_ids=st.none() | st.lists(WHOLE, max_size=3).map(tuple),
    tool_calls=CALLS,
    warnings=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    text=st.text(max_size=4),
)


@given(st.lists(RECORDS, max_size=5))
@settings(deadline=None)
def test_records_of_any_shape_come_back_from_their_table(tmp_path_factory, records: list[RequestRecord]):
    """What is None, empty or nested is that again."""
    path = tmp_path_factory.mktemp("table") / "records.parquet"
    save_table(path, records, RequestRecord)
    assert load_table(path, RequestRecord) == tuple(records)
