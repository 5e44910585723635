"""Hugging Face TGI: events counted as tokens, what it refuses, its settings from the log and its traps."""

import pytest
from payload_streams import (
    counts,
    find_cuts_that_matter,
    gain,
    list_streams,
    play,
    play_by_event,
    read_bodies,
    read_payload,
    read_series,
)
from tests.builders.records import build_item

from draftproof.core.records import ToolCall
from draftproof.services.engines.adapter import ProbeObservation
from draftproof.services.engines.facts import Settings
from draftproof.services.engines.proof import prove_speculation
from draftproof.services.engines.tgi import TGI
from draftproof.services.engines.values import first_sum
from draftproof.workload.items import Sampling

TEXT = "The quick brown 🦊 jumps over the lazy dog."
ON: Settings = {"speculation.method": "n-gram", "speculation.num_spec_tokens": 3}


def stream(name):
    return play_by_event(TGI, read_payload("tgi", name))


@pytest.mark.parametrize("name", list_streams("tgi"))
def test_no_cut_changes_an_answer(name):
    """A stream cut in two at any byte is understood as the whole one is."""
    assert find_cuts_that_matter(TGI, read_payload("tgi", name)) == []


def test_every_event_is_one_token_the_end_token_included():
    """Eleven events are eleven tokens by the engine's own count, and the usage agrees."""
    exchange = stream("chat_ngram.sse")
    answer = exchange.answer
    assert (exchange.outcome, answer.text, answer.finish_reason) == ("ok", TEXT, "stop")
    assert counts(exchange) == [(at_ns, at_ns + 1) for at_ns in range(11)]
    assert (answer.token_source, answer.output_tokens, answer.prompt_tokens) == ("engine", 11, 17)
    assert (answer.speculation, answer.decode_steps, exchange.warnings) == (None, None, ())


def test_half_a_character_is_a_token_too():
    """An event without text in mid-answer carries a token at its own time."""
    exchange = stream("chat_split_character.sse")
    assert counts(exchange) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert (exchange.answer.text, exchange.answer.finish_reason) == ("Hi 🦊!", "length")


@pytest.mark.parametrize("name", ["chat_ngram_crlf.sse", "chat_keep_alive.sse"])
def test_keep_alives_and_line_ends_change_nothing(name):
    """Bare comments, CRLF and a data line without a space give the same answer."""
    plain = play(TGI, [(read_payload("tgi", "chat_ngram.sse"), 1)])
    assert play(TGI, [(read_payload("tgi", name), 1)]) == plain


def test_events_of_a_tool_call_are_not_counted_as_tokens():
    """A tool call's beginning and end are held back, so its events are fewer than its tokens."""
    exchange = stream("chat_tool_call.sse")
    assert exchange.answer.tool_calls == (ToolCall("find_book", '{"title": "Emma"}'),)
    assert (exchange.answer.token_source, exchange.answer.output_tokens) == (None, 21)
    assert {chunk.cumulative_tokens for chunk in exchange.answer.chunks} == {None}


def test_a_count_that_the_usage_contradicts_is_not_used():
    """If events and usage disagree, something other than one token went into an event."""
    body = read_payload("tgi", "chat_ngram.sse").replace(b'"completion_tokens":11', b'"completion_tokens":12')
    exchange = play_by_event(TGI, body)
    assert (exchange.answer.token_source, exchange.answer.output_tokens) == (None, 12)


@pytest.mark.parametrize(
    ("name", "outcome", "said", "text"),
    [
        ("chat_refused.sse", "http_error", "`top_p` must be > 0.0 and < 1.0", ""),
        ("chat_overloaded.sse", "rejected", "Model is overloaded", ""),
        ("chat_failed.sse", "http_error", "CUDA out of memory", "The quick brown"),
    ],
)
def test_refusals_inside_the_stream_fail_the_request(name, outcome, said, text):
    """TGI answers 200 and refuses in the stream; what came before is kept."""
    exchange = stream(name)
    assert (exchange.outcome, exchange.http_status, exchange.answer.text) == (outcome, 200, text)
    assert said in str(exchange.error)


@pytest.mark.parametrize(
    ("name", "status", "outcome"),
    [("error_template.json", 422, "http_error"), ("error_overloaded.json", 429, "rejected")],
)
def test_error_bodies_are_quoted(name, status, outcome):
    """A refusal before the stream keeps the status and the server's words."""
    body = read_payload("tgi", name)
    exchange = play(TGI, [(body, 1)], status=status)
    assert (exchange.outcome, exchange.http_status) == (outcome, status)
    assert body.decode().strip() in str(exchange.error)


def test_what_it_refuses_is_not_sent():
    """A top_p of 1 becomes null, any other one stays; usage is asked for at the end only."""
    whole = TGI.build_payload(build_item(), seed=1, served_model="tgi")
    assert (whole["top_p"], whole["stream_options"]) == (None, {"include_usage": True})
    part = TGI.build_payload(build_item(sampling=Sampling(top_p=0.9)), seed=1, served_model="tgi")
    assert part["top_p"] == 0.9


def test_a_schema_is_asked_for_in_its_own_words():
    """TGI's response_format holds the schema under `value`."""
    item = build_item(response_schema={"type": "object"})
    payload = TGI.build_payload(item, seed=1, served_model="tgi")
    assert payload["response_format"] == {"type": "json", "value": {"type": "object"}}


def test_series_are_found_under_the_engines_names():
    """Accepted drafts, steps and tokens over a request are those of its counters."""
    series = TGI.facts.series
    before, after = (read_series("tgi", f"metrics_ngram_{end}.prom") for end in ("before", "after"))
    names = ("accepted_tokens", "engine_steps", "generation_tokens", "prompt_tokens", "finished_requests")
    gained = [gain(before, after, *getattr(series, name)) for name in names]
    assert gained == [6, 4, 11, 17, 1]
    assert [first_sum(after, getattr(series, name)) for name in ("running", "waiting")] == [1, 0]


def test_decode_steps_are_the_records_of_skipped_tokens_less_the_prefills():
    """The summary gets one record for each step, the prefill's too, whatever its description says."""
    before, after = (read_series("tgi", f"metrics_ngram_{end}.prom") for end in ("before", "after"))
    records = gain(before, after, "tgi_request_skipped_tokens_count")
    prefills = gain(before, after, "tgi_request_success_total")
    assert records - prefills == 4


def test_steps_and_drafts_are_not_taken_from_a_count_that_grows_without_drafts():
    """Records of skipped tokens are made with speculation off as well, so they prove nothing."""
    before, after = (read_series("tgi", f"metrics_off_{end}.prom") for end in ("before", "after"))
    assert gain(before, after, "tgi_request_skipped_tokens_count") == 5
    assert (TGI.facts.series.spec_steps, TGI.facts.series.draft_tokens) == ((), ())
    proof = prove_speculation(TGI, ProbeObservation(settings=ON, before=before, after=after))
    assert proof.state != "drafting"
    assert "counts only accepted ones" in str(proof.cause)


def test_info_gives_version_model_and_limits():
    """The info address names version, revision and context, and nothing about speculation."""
    identity = TGI.read_identity(read_bodies("tgi", info="info.json", v1__models="models.json"))
    assert (identity.engine, identity.version) == ("tgi", "3.3.6-dev0")
    assert identity.settings == {
        "max_concurrent_requests": 128, "max_input_tokens": 4095, "max_stop_sequences": 4,
        "max_model_len": 4096,
        "model_sha": "e985a63cdc139290c5f700ff1929f0b5942cced2",
        "platform.engine_build": f"sha-0000000 {'0' * 40}",
    }  # fmt: skip
    assert TGI.facts.find_release(str(identity.version)) is not None


def test_unknown_identities_say_nothing():
    """No body, a page or another server's body yields no engine, no version and no settings."""
    for bodies in ({}, {"/info": b"<html>"}, {"/info": b'{"max_total_tokens": "many"}'}):
        identity = TGI.read_identity(bodies)
        assert (identity.engine, identity.version, identity.settings) == (None, None, {})
    assert TGI.facts.find_release("2.4.1") is None


def flags(text):
    return TGI.read_flags(["text-generation-launcher", "--model-id", "m", *text.split()])


def test_flags_name_a_method_only_where_it_is_certain():
    """A length above zero may be look-up or heads, and heads need no flag; zero is off."""
    assert flags("--speculate 3 --port 8080 --hostname h") == {
        "model_id": "m",
        "speculation.num_spec_tokens": 3,
    }
    assert flags("--speculate 0")["speculation.method"] == "off"
    assert flags("--max-total-tokens 4096") == {"model_id": "m", "max_model_len": 4096}


def test_the_log_tells_method_and_what_else_changed():
    """Method, length, chunking, attention and the token budget stand in the start's log."""
    on, off = (TGI.read_log(read_payload("tgi", f"log_{name}.txt").decode()) for name in ("ngram", "off"))
    assert on == {**ON, "attention": "flashinfer", "prefix_caching": True, "prefill_chunking": False,
                  "capacity.max_batch_total_tokens": 131072}  # fmt: skip
    assert (off["speculation.method"], off["prefill_chunking"], off["capacity.max_batch_total_tokens"]) == (
        "off",
        True,
        140288,
    )
    assert TGI.read_log("") == {}


def explain(**fields):
    evidence = ProbeObservation(**({"settings": ON} | fields))
    return TGI.explain_off(evidence) or TGI.explain_idle(evidence)


def test_idle_drafters_are_explained():
    """A start without speculation is named; growth of accepted drafts and lack of evidence give no cause."""
    before, after = (read_series("tgi", f"metrics_ngram_{end}.prom") for end in ("before", "after"))
    assert "--speculate" in explain(settings={"speculation.method": "off"})
    assert "--speculate" in explain(log=read_payload("tgi", "log_off.txt").decode())
    assert "only accepted ones" in explain(before=after, after=after)
    assert explain(before=before, after=after) is None
    assert explain() is None


def test_the_state_before_a_step_judges_all_its_drafts():
    """Penalties and grammars are listed as wrong under speculation, and no method is called exact."""
    told = " ".join(one.text for one in TGI.facts.refuses)
    assert ("penalties" in told, "grammar" in told, TGI.facts.is_exact) == (True, True, False)
