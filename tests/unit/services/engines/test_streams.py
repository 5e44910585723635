"""Streams whose counts mislead, read by every adapter: tokens and time of one span, no placeholder zero."""

import json
import re
from pathlib import Path

import pytest
from tests.builders.records import build_item

from draftproof.core.records import RequestRecord, ServerTimings
from draftproof.judge.metrics.acceptance import count_decode_steps, pool_acceptance
from draftproof.judge.metrics.request import compute_request_metrics, count_output_tokens
from draftproof.measure.client.exchange import Ending, Exchange, ExchangeFold
from draftproof.measure.load.period import Job, Period, make_record
from draftproof.services.engines import ADAPTERS

MS = 1_000_000
STREAMS = Path(__file__).parents[3] / "fixtures" / "streams"
EVERY = sorted(ADAPTERS)
_TURN = Period(block=0, load="low", concurrency=1, repeat=0, arm="baseline", order=0, item_ids=("i",))


def load(name: str) -> list[tuple[float, str]]:
    return [(delay, text) for delay, text in json.loads((STREAMS / name).read_text())["writes"]]


def read(engine: str, writes: list[tuple[float, str]]) -> tuple[RequestRecord, Exchange]:
    """Return the record and the exchange of an answer whose parts are written after these delays in ms."""
    fold = ExchangeFold(ADAPTERS[engine].start_fold())
    fold.on_sent(0)
    fold.on_headers(200, "text/event-stream", 0)
    at_ns = 0
    for delay, text in writes:
        at_ns += round(delay * MS)
        fold.on_body(text.encode(), at_ns)
    exchange = fold.close(Ending(kind="complete", at_ns=at_ns))
    job = Job(request_id="r", item=build_item("i"), phase="measure", order_in_block=0, seed=None)
    return make_record(_TURN, job, 0, exchange), exchange


def tpot_ms(record: RequestRecord) -> float | None:
    found = compute_request_metrics(record, 200 * MS).tpot_ns
    return None if found is None else found / MS


def without_running_usage(writes: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the stream of a service that states the usage on its closing event alone."""
    return [
        (delay, text if '"choices":[]' in text else re.sub(r',"usage":\{[^}]*\}', "", text))
        for delay, text in writes
    ]


def with_visible_tail(writes: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the stream of a service of the same pace that shows its last tokens with the finish reason."""
    return [
        (
            delay,
            text.replace(
                '"delta":{},"finish_reason":"tool_calls"',
                '"delta":{"content":" end"},"finish_reason":"tool_calls"',
            ),
        )
        for delay, text in writes
    ]


@pytest.mark.parametrize("engine", EVERY)
def test_tokens_that_only_the_closing_usage_reports_end_with_the_finish_event(engine):
    """Twenty tokens in 200 ms are 10 ms a token, the eight without content among them."""
    record, exchange = read(engine, load("hidden-tokens-vllm.json"))
    assert (exchange.outcome, record.output_tokens) == ("ok", 24)
    assert tpot_ms(record) == pytest.approx(10.0)


@pytest.mark.parametrize("engine", EVERY)
@pytest.mark.parametrize("counted", [load, lambda name: without_running_usage(load(name))])
def test_two_services_of_equal_pace_are_equal_whichever_hides_its_tail(engine, counted):
    """The ratio of a service that hides its last tokens to one that shows them is 1.00, counted or not."""
    hiding = counted("hidden-tokens-vllm.json")
    ratio = (tpot_ms(read(engine, hiding)[0]) or 0) / (
        tpot_ms(read(engine, with_visible_tail(hiding))[0]) or 1
    )
    assert ratio == pytest.approx(1.0)


@pytest.mark.parametrize("engine", EVERY)
def test_a_count_that_lags_by_one_chunk_is_moved_and_named(engine):
    """A content chunk brings a token at least, so a first count of 0 is that of the chunk before."""
    record, _ = read(engine, load("lagging-usage.json"))
    assert tpot_ms(record) == pytest.approx(10.0)
    assert [chunk.cumulative_tokens for chunk in record.chunks] == [4, 8, 12, 16]
    assert record.warnings == ("the token count by continuous_usage lags by one chunk and is moved",)


@pytest.mark.parametrize("engine", EVERY)
@pytest.mark.parametrize(("total", "kept"), [(12, 12), (None, None)])
def test_a_first_count_of_zero_that_no_lag_explains_is_not_used(engine, total, kept):
    """Where the running count reaches the total, or there is none, the zero is a placeholder."""
    closing = f'"completion_tokens":{total}' if total else '"prompt_tokens":7'
    writes = [
        (delay, text.replace('"completion_tokens":16', closing)) for delay, text in load("lagging-usage.json")
    ]
    record, _ = read(engine, writes)
    assert (record.token_source, count_output_tokens(record)) == (None, kept or 12)
    assert (
        "the token count by continuous_usage is 0 at a chunk with content and is not used" in record.warnings
    )


@pytest.mark.parametrize("engine", EVERY)
def test_placeholder_zeros_are_no_measurement(engine):
    """Tokens, prompt and the server's times are unknown where zeros stand, and the totals are named."""
    record, exchange = read(engine, load("zero-usage-generic.json"))
    assert exchange.outcome == "ok"
    assert (count_output_tokens(record), record.output_tokens, record.prompt_tokens) == (None, None, None)
    assert {chunk.cumulative_tokens for chunk in record.chunks} == {None}
    assert (tpot_ms(record), record.server, record.decode_steps) == (None, ServerTimings(), None)
    assert record.speculation is None
    assert "usage says 0 tokens for an answer with content and is not used" in record.warnings


@pytest.mark.parametrize("engine", EVERY)
def test_better_evidence_outlives_a_closing_zero(engine):
    """Running counts seen before a closing usage of 0 still date and count the tokens."""
    writes = [
        (delay, text.replace('"completion_tokens":24', '"completion_tokens":0'))
        for delay, text in load("hidden-tokens-vllm.json")
    ]
    record, _ = read(engine, writes)
    assert record.output_tokens == 16
    assert tpot_ms(record) == pytest.approx(10.0)
    assert "usage says 0 tokens for an answer with content and is not used" in record.warnings


@pytest.mark.parametrize("engine", EVERY)
def test_a_total_below_what_was_streamed_is_no_total(engine):
    """Ten tokens by the closing usage, sixteen by the stream: there were sixteen."""
    writes = [
        (delay, text.replace('"completion_tokens":24', '"completion_tokens":10'))
        for delay, text in load("hidden-tokens-vllm.json")
    ]
    record, _ = read(engine, writes)
    assert record.output_tokens == 16
    assert "usage says 10 tokens, fewer than 16 streamed, and is not used" in record.warnings


@pytest.mark.parametrize("engine", EVERY)
def test_a_usage_that_content_followed_is_no_total(engine):
    """A count stated once at the beginning says nothing of what came after it."""
    writes = [(d, t) for d, t in without_running_usage(load("lagging-usage.json"))]
    first = writes[1][1].replace(
        '"finish_reason":null}]', '"finish_reason":null}],"usage":{"completion_tokens":1}'
    )
    record, _ = read(
        engine, [writes[0], (30, first), *[(d, re.sub(r',"usage":\{[^}]*\}', "", t)) for d, t in writes[2:]]]
    )
    assert (record.output_tokens, tpot_ms(record)) == (None, None)


@pytest.mark.parametrize("engine", EVERY)
def test_tokens_that_no_chunk_carries_give_no_rate(engine):
    """Of a total that counts hidden reasoning nobody knows which tokens came in the span."""
    writes = [
        (
            delay,
            text.replace(
                '"completion_tokens":24',
                '"completion_tokens":24,"completion_tokens_details":{"reasoning_tokens":8}',
            ),
        )
        for delay, text in without_running_usage(load("hidden-tokens-vllm.json"))
    ]
    record, _ = read(engine, writes)
    assert (record.output_tokens, record.unstreamed_tokens, tpot_ms(record)) == (24, 8, None)


@pytest.mark.parametrize("engine", EVERY)
def test_an_answer_sent_token_by_token_has_the_steps_that_its_acceptance_allows(engine):
    """Twenty events are not nineteen steps: thirteen accepted drafts leave six, 3.17 tokens each."""
    record, _ = read(engine, load("token-by-token-vllm.json"))
    if record.speculation is None:
        assert record.decode_steps is None
        return
    assert count_decode_steps(record) == (6, 19)
    pooled = pool_acceptance([record])
    assert pooled is not None
    assert pooled.tokens_per_decode_step == pytest.approx(3.17, abs=0.005)


def test_steps_out_of_bounds_are_named():
    """What the chunks of one answer would say is kept as a warning, not as a number."""
    record, _ = read("vllm", load("token-by-token-vllm.json"))
    assert record.decode_steps is None
    assert "19 decode steps are not the 6 to 9 that its tokens and acceptance allow" in record.warnings


SPEC_BLOCK = (
    '"sglext":{"spec_tokens_details":{"spec_verify_ct":%d,"spec_num_correct_drafts":%d,'
    '"spec_num_proposed_drafts":%d}}'
)


def closing(*, choice: str = "", block: str = "", tokens: int = 20) -> list[tuple[float, str]]:
    """Return a stream of as many tokens, with an engine's own words beside the finish reason or the usage."""
    one = '"delta":{"content":"a"},"finish_reason":null'
    last = f'"delta":{{}},"finish_reason":"stop"{choice}'
    usage = f'"usage":{{"prompt_tokens":7,"completion_tokens":{tokens}}}'
    return [
        *((10, f'data: {{"choices":[{{"index":0,{one}}}]}}\n\n') for _ in range(4)),
        (0, f'data: {{"choices":[{{"index":0,{last}}}]}}\n\n'),
        (0, f'data: {{"choices":[],{usage}{block and "," + block}}}\n\ndata: [DONE]\n\n'),
    ]


@pytest.mark.parametrize(
    ("engine", "writes", "said"),
    [
        ("sglang", closing(block=SPEC_BLOCK % (30, 5, 90)), "cannot be those of an answer of 20 tokens"),
        ("sglang", closing(block=SPEC_BLOCK % (5, 80, 90)), "cannot be those of an answer of 20 tokens"),
        ("tensorrt-llm", closing(choice=',"avg_decoded_tokens_per_iter":4000.0'), "-1 decode steps are not"),
        (
            "tensorrt-llm",
            closing(choice=',"avg_decoded_tokens_per_iter":0.9991', tokens=1111),
            "1111 decode steps",
        ),
    ],
)
def test_every_engines_steps_are_bounded_and_named(engine, writes, said):
    """Counters of another answer, a quotient next to nothing and one below a token a step give no steps."""
    record, exchange = read(engine, writes)
    assert (exchange.outcome, record.decode_steps) == ("ok", None)
    assert any(said in warning for warning in record.warnings), record.warnings


def test_an_estimate_that_was_not_stated_is_no_zero():
    """A release of SGLang without its estimate of drafts has no counters, and its steps all the same."""
    block = '"sglext":{"spec_tokens_details":{"spec_verify_ct":5,"spec_num_correct_drafts":13}}'
    record, _ = read("sglang", closing(block=block))
    assert (record.speculation, record.decode_steps) == (None, 6)


def test_accepted_drafts_that_are_not_stated_are_no_rejections():
    """A release that states its steps alone says nothing of acceptance."""
    record, _ = read("sglang", closing(block='"sglext":{"spec_tokens_details":{"spec_verify_ct":5}}'))
    assert (record.speculation, record.decode_steps, record.warnings) == (None, None, ())


def write_running(
    *counts: int | None, finish: float = 0.0, total: int | None, on_last: str = ""
) -> list[tuple[float, str]]:
    """Return a stream of a chunk every 40 ms with these running counts, then its finish event and total."""

    def event(delta: dict[str, str], ended: str | None, count: int | None) -> str:
        body = {"choices": [{"index": 0, "delta": delta, "finish_reason": ended}]}
        stated = {} if count is None else {"usage": {"prompt_tokens": 7, "completion_tokens": count}}
        return f"data: {json.dumps(body | stated)}\n\n"

    ends = [None] * (len(counts) - 1) + [on_last or None]
    writes = [
        (40.0, event({"content": "e f g h "}, end, count)) for count, end in zip(counts, ends, strict=True)
    ]
    if not on_last:
        writes.append((finish, event({}, "stop", None)))
    closing = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": total}}
    return [*writes, (80.0, f"data: {json.dumps(closing)}\n\ndata: [DONE]\n\n")]


@pytest.mark.parametrize("engine", EVERY)
def test_tokens_above_the_finish_events_own_count_have_no_time(engine):
    """Where the finish event says 16 tokens, eight more of the total are left out: 10 ms."""
    record, _ = read(engine, write_running(4, 8, 12, 16, total=24, on_last="stop"))
    assert tpot_ms(record) == pytest.approx(10.0)
    assert record.warnings == ("chunks carry 16 tokens by continuous_usage, usage says 24",)


@pytest.mark.parametrize("engine", EVERY)
@pytest.mark.parametrize("running", [(1, 1, 1, 1), (4, 4, 5, 5), (1, 5, 5, 9)])
def test_a_count_that_stays_below_the_total_while_content_comes_is_not_used(engine, running):
    """A count that was never kept up, and one of the chunk alone, are no running counts."""
    record, _ = read(engine, write_running(*running, total=18))
    assert (record.token_source, record.output_tokens) == (None, 18)
    assert [one for one in record.warnings if "at a chunk with content and is not used" in one]


@pytest.mark.parametrize("engine", EVERY)
@pytest.mark.parametrize("total", [24, 17])
def test_a_lag_with_a_hidden_tail_has_no_count_for_its_last_chunk(engine, total):
    """Tokens that came after the last content would make its chunk fast: the rate is an interval."""
    finish = {24: 80.0, 17: 40.0}[total]
    record, _ = read(engine, write_running(0, 4, 8, 12, total=total, finish=finish))
    metrics = compute_request_metrics(record, 200 * MS)
    assert (record.token_source, metrics.tpot_basis) == (None, "single_first_token_assumed")
    assert (metrics.tpot_ns or 0) / MS <= 10.0 < (metrics.tpot_most_ns or 0) / MS


@pytest.mark.parametrize("engine", sorted(set(EVERY) - {"tgi"}))
def test_a_total_below_the_chunks_with_content_is_named(engine):
    """A placeholder of 1 is no count of four chunks; the total stays, for words may be sent in pieces."""
    record, _ = read(engine, write_running(None, None, None, None, total=1))
    assert record.warnings == ("usage says 1 tokens for 4 chunks with content",)


@pytest.mark.parametrize("engine", EVERY)
def test_a_total_that_no_answer_reaches_fails_the_request(engine):
    """A field that was never set is no time per token of nothing."""
    _, exchange = read(engine, write_running(4, 8, total=2**64 - 1))
    assert exchange.outcome == "malformed"


@pytest.mark.parametrize(
    "stated", [{"timings": {"predicted_n": 2**31}}, {"choices": [{"delta": {}, "token_ids": [10**25]}]}]
)
def test_numbers_that_no_engine_means_fail_the_request(stated):
    """A count by timings is bounded like one by usage, and an id that no record can hold is none."""
    frame = f"data: {json.dumps({'choices': []} | stated)}\n\n"
    assert read("llamacpp", [(40.0, frame), *write_running(4, 8, total=8)])[1].outcome == "malformed"


def test_a_generation_time_of_zero_is_no_measurement():
    """Three tokens after the first take time; an answer of one token may have none."""
    block = {"time_to_first_token_ms": 12.0, "generation_time_ms": 0.0}
    for total, kept in ((4, ServerTimings()), (1, ServerTimings(prefill_ns=12 * MS, decode_ns=0))):
        writes = write_running(*range(1, total + 1), total=total)
        delay, text = writes[-1]
        text = text.replace('{"choices": []', f'{{"metrics": {json.dumps(block)}, "choices": []')
        assert read("vllm", [*writes[:-1], (delay, text)])[0].server == kept


def test_a_refusal_is_text():
    """What the protocol streams as `refusal` is generated text, and no empty answer."""
    writes = [(delay, text.replace('"content"', '"refusal"')) for delay, text in write_running(4, 8, total=8)]
    assert read("generic", writes)[0].text == "e f g h e f g h "
