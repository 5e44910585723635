"""vLLM's adapter, driven by answers, metrics, logs and settings recorded from release 0.32.0."""

from pathlib import Path

import pytest
from tests.builders.records import build_item

from draftproof.core.errors import PlanError
from draftproof.core.records import RequestRecord
from draftproof.judge.metrics.acceptance import count_decode_steps
from draftproof.measure.client.exchange import Ending, ExchangeFold
from draftproof.services.engines.adapter import ProbeObservation
from draftproof.services.engines.proof import prove_speculation
from draftproof.services.engines.values import first_sum, sum_by_label
from draftproof.services.engines.vllm import VLLM
from draftproof.services.telemetry.scrape import parse_exposition

IDLE_COMMAND = (
    *("vllm", "serve", "/models/target", "--speculative-config"),
    '{"method":"ngram","num_speculative_tokens":4,"num_speculative_tokens_per_batch_size":[[1,1,0],[2,8,4]]}',
)
RECORDED = Path(__file__).parents[3] / "fixtures" / "payloads" / "vllm"
STREAMS = sorted(path.stem for path in RECORDED.glob("chat_*.sse"))


def load(name):
    return (RECORDED / name).read_bytes()


def fold(*parts):
    exchange = ExchangeFold(VLLM.start_fold())
    exchange.on_sent(1)
    exchange.on_headers(200, "text/event-stream; charset=utf-8", 2)
    for part in parts:
        exchange.on_body(part, 3)
    return exchange.close(Ending(kind="complete", at_ns=4))


def answer(name):
    exchange = fold(load(f"chat_{name}.sse"))
    assert exchange.outcome == "ok"
    return exchange.answer


def steps(name):
    """Return how many tokens each content chunk carries."""
    counts = [chunk.cumulative_tokens for chunk in answer(name).chunks]
    return [now - before for before, now in zip([0, *counts], counts, strict=False)]


def evidence(*, settings, name=None, metrics=None, log=""):
    before, after = None, None
    if metrics is not None:
        before, after = (exposition(f"metrics_{metrics}_{when}.prom") for when in ("before", "after"))
    return ProbeObservation(
        settings=settings,
        answer=None if name is None else answer(name),
        before=before,
        after=after,
        log=log,
    )


def exposition(name):
    return parse_exposition(load(name).decode())


def gains(arm):
    """Return what each quantity of the adapter's series gained over the recorded requests of an arm."""
    before, after = (exposition(f"metrics_{arm}_{when}.prom") for when in ("before", "after"))
    known = {series: value - before.get(series, 0.0) for series, value in after.items()}
    return lambda quantity: first_sum(known, getattr(VLLM.facts.series, quantity))


def test_a_request_asks_for_ids_and_for_usage_at_every_chunk():
    """VLLM's best count is asked for, and no field that it does not know."""
    payload = VLLM.build_payload(build_item(), seed=1, served_model="m")
    assert payload["return_token_ids"] is True
    assert payload["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_speculation_cannot_be_switched_per_request():
    """VLLM has no field for it, so the wish is an error and not ignored."""
    with pytest.raises(PlanError, match="cannot switch speculation per request"):
        VLLM.build_payload(build_item(), seed=1, served_model="m", speculation="off")


@pytest.mark.parametrize("name", STREAMS)
def test_any_cut_of_a_recorded_stream_gives_the_same_answer(name):
    """Bytes that come one by one, so with every cut at once, and bytes in two parts are read like the whole.

    All cuts in two are tried on the shortest stream with content, and some on every other.
    """
    data = load(f"{name}.sse")
    whole = fold(data)
    assert fold(*(data[at : at + 1] for at in range(len(data)))) == whole
    for at in range(1, len(data), 1 if name == "chat_ngram_stop" else 211):
        assert fold(data[:at], data[at:]) == whole, at


def test_without_speculation_every_chunk_holds_one_token():
    """The baseline's chunks are its tokens, and it states no counters."""
    assert steps("off_copy") == [1] * 24
    told = answer("off_copy")
    assert (told.token_source, told.prompt_tokens, told.output_tokens) == ("token_ids", 101, 24)
    assert told.finish_reason == "length"
    assert told.speculation is None
    assert told.warnings == ()


def test_a_chunk_holds_one_verification_step():
    """Five steps of up to four drafts: 19 accepted, and the last step is cut short by max_tokens."""
    assert steps("ngram_copy") == [1, 5, 5, 5, 4, 4]
    counts = answer("ngram_copy").speculation
    assert counts is not None
    assert (counts.num_spec_steps, counts.num_draft_tokens, counts.num_accepted_draft_tokens) == (5, 20, 19)
    assert counts.acceptance_histogram == (0, 0, 0, 1, 4)
    assert counts.per_step_drafted == (4, 4, 4, 4, 4)
    assert counts.per_step_accepted == (4, 4, 4, 3, 4)


def test_steps_without_a_draft_are_in_no_counter():
    """One of six decode steps drafted: the stated acceptance length is of that step alone."""
    told = answer("ngram_plain")
    assert steps("ngram_plain") == [1, 1, 1, 2, 1, 1, 1]
    assert told.speculation is not None
    assert told.speculation.num_spec_steps == 1


@pytest.mark.parametrize(
    "name", ["ngram_copy", "ngram_plain", "ngram_schema", "ngram_summary_copy", "draft_copy", "draft_schema"]
)
def test_decode_steps_by_counters_are_those_by_chunks(name):
    """Counters and delivery tell the same number of decode steps, also where the last step is cut short."""
    told = answer(name)
    record = RequestRecord(
        **record_fields(), chunks=told.chunks, output_tokens=told.output_tokens, speculation=told.speculation
    )
    assert count_decode_steps(record) == (len(told.chunks) - 1, told.output_tokens - 1)


def record_fields():
    words = {"request_id": "r", "arm": "candidate", "load": "l", "item_id": "i", "phase": "measure"}
    numbers = dict.fromkeys(("block", "repeat", "order_in_block", "concurrency", "scheduled_ns"), 0)
    times = {"sent_ns": 1, "headers_ns": 2, "end_ns": 4}
    return {**words, **numbers, **times, "seed": None, "outcome": "ok"}


def test_both_arms_give_the_same_greedy_answer_here():
    """The recorded answers agree token for token, so what differs in the fixtures is speculation alone."""
    for name in ("plain", "copy", "schema"):
        assert answer(f"ngram_{name}").token_ids == answer(f"off_{name}").token_ids


def test_an_answer_ended_by_a_stop_string_states_no_counters():
    """VLLM leaves the block out there; the counters stay unknown and are not taken for zero."""
    told = answer("ngram_stop")
    assert (told.text, told.finish_reason) == ("The red lamp stands on the long ", "stop")
    assert steps("ngram_stop") == [1, 5, 2]
    assert told.speculation is None
    assert told.server.queue_ns is not None


def test_of_two_choices_the_first_is_the_answer_and_the_sum_is_named():
    """Usage adds up both choices: the answer keeps its own count, and the difference is a warning."""
    told = answer("ngram_n2")
    assert told.speculation is None
    assert told.chunks[-1].cumulative_tokens == 8
    assert told.output_tokens == 8
    assert told.warnings == (
        "chunks carry 8 tokens by token_ids, usage says 16",
        "9 chunks of further choices are not part of the answer",
    )


def test_drafts_that_a_grammar_forbids_are_not_counted():
    """Under a JSON schema 19 of 24 decode steps count as drafting, some with fewer drafts than were made."""
    told = answer("draft_schema")
    assert told.speculation is not None
    assert len(told.chunks) == 25
    assert (told.speculation.num_spec_steps, told.speculation.num_draft_tokens) == (19, 42)
    assert set(told.speculation.per_step_drafted) == {1, 2, 3}


def test_a_summary_has_the_counters_without_the_steps():
    """With the shorter form of per-request metrics the lists of steps are empty and the counters the same."""
    short, long = answer("ngram_summary_copy").speculation, answer("ngram_copy").speculation
    assert short is not None
    assert (short.per_step_drafted, short.per_step_accepted) == ((), ())
    assert short.acceptance_histogram == long.acceptance_histogram
    assert short.num_draft_tokens == long.num_draft_tokens


@pytest.mark.parametrize("field", ["logit_bias", "min_p"])
def test_a_refused_field_is_an_error_although_the_status_is_200(field):
    """On a stream vLLM answers 200 and an error event; the request has failed all the same."""
    exchange = fold(load(f"chat_ngram_refused_{field}.sse"))
    assert exchange.outcome == "http_error"
    assert "not yet supported with speculative decoding" in str(exchange.error)


def test_queue_prefill_and_decode_times_are_the_server_s_own():
    """Milliseconds become nanoseconds; the time to first token counts from scheduling, so it is prefill."""
    times = answer("ngram_plain").server
    assert (times.queue_ns, times.prefill_ns, times.decode_ns) == (35676, 2162875158, 967475430)


def test_a_metrics_block_of_another_release_costs_no_answer():
    """Fields that a release lacks are None, a block of another shape is a warning."""
    data = load("chat_ngram_copy.sse")
    bare = fold(data.replace(b'"metrics":', b'"measurements":')).answer
    assert (bare.speculation, bare.output_tokens) == (None, 24)
    odd = fold(data.replace(b'"num_spec_steps":5', b'"num_spec_steps":"five"'))
    assert (odd.outcome, odd.answer.speculation, odd.answer.output_tokens) == ("ok", None, 24)
    assert "the metrics block cannot be read" in odd.warnings[0]


def test_the_service_counts_what_its_answers_state():
    """Counters gain the drafts of all answers, and those of the two that state none themselves."""
    gain = gains("ngram")
    stated = [answer(f"ngram_{name}").speculation for name in ("plain", "copy", "schema")]
    assert [sum(one.num_spec_steps for one in stated), gain("spec_steps")] == [7, 11]
    assert [sum(one.num_draft_tokens for one in stated), gain("draft_tokens")] == [27, 43]
    assert [sum(one.num_accepted_draft_tokens for one in stated), gain("accepted_tokens")] == [23, 31]


def test_the_service_s_own_load_is_read():
    """Prompt and answer tokens, steps, requests, queue and cache have their series."""
    gain = gains("off")
    assert [gain(name) for name in ("generation_tokens", "prompt_tokens", "finished_requests")] == [
        78,
        373,
        6,
    ]
    assert [gain("engine_steps"), gain("preemptions"), gain("spec_steps")] == [70, 0, None]
    after = exposition("metrics_off_after.prom")
    found = [
        first_sum(after, getattr(VLLM.facts.series, name)) for name in ("running", "waiting", "cache_usage")
    ]
    assert found == [0, 0, 0]


def test_tokens_after_a_stop_string_are_counted_by_the_service():
    """It made three tokens more than it delivered; usage and ids agree with the delivery."""
    # Of the two choices of n2 the second is delivered too and belongs to no answer: 8 tokens.
    names = ("plain", "copy", "stop", "n2", "schema")
    delivered = 8 + sum(answer(f"ngram_{name}").output_tokens for name in names)
    assert [delivered, gains("ngram")("generation_tokens")] == [78, 81]


def test_accepted_tokens_by_position_add_up_to_all():
    """The positions' counters are of the same tokens as the whole counter."""
    values = exposition("metrics_ngram_after.prom")
    named = VLLM.facts.series.accepted_by_position
    assert named is not None
    by_position = sum_by_label(values, *named)
    assert sorted(by_position) == ["0", "1", "2", "3"]
    assert sum(by_position.values()) == first_sum(values, VLLM.facts.series.accepted_tokens)


PROBE = {"speculation.method": "ngram"}


def test_a_drafting_service_is_proven_by_its_answer_and_by_its_counters():
    """Either source shows drafting; a stop string or n above 1 leaves the counters."""
    by_answer = prove_speculation(VLLM, evidence(settings=PROBE, name="ngram_copy"))
    assert (by_answer.state, by_answer.num_draft_tokens) == ("drafting", 20)
    by_counters = prove_speculation(VLLM, evidence(settings=PROBE, name="ngram_stop", metrics="ngram"))
    assert (by_counters.state, by_counters.num_spec_steps) == ("drafting", 11)


def test_a_schedule_of_zero_drafts_is_named():
    """The service states an acceptance length of 1 and speculation is on: no draft was ever made."""
    settings = VLLM.read_flags(IDLE_COMMAND)
    proof = prove_speculation(VLLM, evidence(settings=settings, name="ngram_idle_copy", metrics="idle"))
    assert (proof.state, proof.num_spec_steps) == ("idle", 0)
    assert proof.cause == "num_speculative_tokens_per_batch_size gives 0 drafts to a batch of one request"


def test_a_service_without_speculation_is_named():
    """Without counters in the answer and in the metrics nothing is disclosed, and the settings say why."""
    found = evidence(settings={"speculation.method": "off"}, name="off_copy", metrics="off")
    proof = prove_speculation(VLLM, found)
    assert proof.state == "undisclosed"
    assert proof.cause == "vLLM runs without a --speculative-config, so nothing drafts"
    unknown = prove_speculation(VLLM, evidence(settings={}, name="off_copy", metrics="off"))
    assert str(unknown.cause).startswith("the metrics have no counters of drafts")


def test_a_draft_model_that_is_never_right_is_named():
    """69 drafts of a draft model with the right vocabulary size and none accepted."""
    settings = {"speculation.method": "draft_model"}
    proof = prove_speculation(VLLM, evidence(settings=settings, name="draft_never_copy"))
    assert (proof.state, proof.num_draft_tokens, proof.num_accepted_draft_tokens) == ("never_accepted", 69, 0)
    assert "compares the vocabularies of draft and target by size only" in str(proof.cause)


def test_an_n_gram_drafter_without_a_match_is_named():
    """The cause carries the shortest match that the service looks for."""
    settings = {"speculation.method": "ngram", "speculation.prompt_lookup_min": 5}
    found = evidence(settings=settings, name="ngram_idle_copy", metrics="idle")
    cause = prove_speculation(VLLM, found).cause
    assert cause == "ngram found no match in the test request (prompt_lookup_min is 5)"


@pytest.mark.parametrize(
    ("sampler", "phrase"),
    [
        (None, None),
        ("standard", None),
        ("block", None),
        ("synthetic", "accepted by chance"),
        ("typical", "typical is not known to keep"),
    ],
)
def test_only_samplers_known_to_be_exact_pass_for_exact(sampler, phrase):
    """Synthetic acceptance and any sampler that was never checked make an arm lossy."""
    found = VLLM.find_lossy({} if sampler is None else {"speculation.rejection_sample_method": sampler})
    assert (found is None) if phrase is None else phrase in str(found)
