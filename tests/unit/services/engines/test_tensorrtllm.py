"""TensorRT-LLM: its steps from tokens per iteration, its counters by position, its settings and its traps."""

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
from draftproof.services.engines.tensorrtllm import TENSORRT_LLM
from draftproof.services.engines.values import first_sum, sum_by_label
from draftproof.workload.items import Sampling

TEXT = "The quick brown 🦊 jumps over the lazy dog."
ON: Settings = {"speculation.method": "Eagle3"}
METRICS = "prometheus__metrics"
# The fields of a chat request in the release; any other one is refused with 400.
REQUEST_FIELDS = {
    *("messages", "model", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "max_tokens", "n"),
    *(
        "presence_penalty",
        "response_format",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
    ),
    *("tools", "tool_choice", "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos"),
}


def stream(name):
    return play_by_event(TENSORRT_LLM, read_payload("tensorrtllm", name))


@pytest.mark.parametrize("name", list_streams("tensorrtllm"))
def test_no_cut_changes_an_answer(name):
    """A stream cut in two at any byte is understood as the whole one is."""
    assert find_cuts_that_matter(TENSORRT_LLM, read_payload("tensorrtllm", name)) == []


def test_steps_come_from_tokens_per_iteration_less_the_prefill():
    """11 tokens at 2.2 an iteration are 5 iterations, of which one is the prefill; drafts stay unknown."""
    exchange = stream("chat_eagle3.sse")
    answer = exchange.answer
    assert (exchange.outcome, answer.text, answer.finish_reason) == ("ok", TEXT, "stop")
    assert counts(exchange) == [(1, 1), (2, 5), (3, 6), (4, 9), (5, 11)]
    assert (answer.token_source, answer.output_tokens, answer.prompt_tokens) == ("continuous_usage", 11, 17)
    assert (answer.decode_steps, answer.speculation, exchange.warnings) == (4, None, ())


def test_ordinary_decoding_takes_a_step_for_each_token_after_the_first():
    """Without drafts the average is 1; an end token without text is counted at its own time."""
    exchange = stream("chat_off.sse")
    assert counts(exchange) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)]
    assert (exchange.answer.decode_steps, exchange.answer.output_tokens) == (5, 6)


def test_tokens_without_text_are_counted_when_they_come():
    """A chunk whose text is held back still carries its tokens at its own time."""
    exchange = stream("chat_held_text.sse")
    assert counts(exchange) == [(1, 1), (2, 4), (3, 5), (4, 8)]
    assert (exchange.answer.text, exchange.answer.finish_reason) == ("Hi there.", "length")


def test_crlf_and_comments_change_nothing():
    """Lines that a proxy ended in CRLF and its keep-alive comments give the same answer."""
    plain = play(TENSORRT_LLM, [(read_payload("tensorrtllm", "chat_eagle3.sse"), 1)])
    assert play(TENSORRT_LLM, [(read_payload("tensorrtllm", "chat_eagle3_crlf.sse"), 1)]) == plain


def test_reasoning_and_tool_calls_are_content():
    """Reasoning text and pieces of a tool call are counted as any other text."""
    reasoning, call = stream("chat_reasoning.sse"), stream("chat_tool_call.sse")
    assert (reasoning.answer.reasoning_text, reasoning.answer.text) == ("Look it up.\nDone", "It is 42.")
    assert (counts(reasoning), reasoning.answer.decode_steps) == ([(1, 1), (2, 5), (3, 8), (4, 12)], 3)
    assert call.answer.tool_calls == (ToolCall("find_book", '{"title": "Emma"}'),)
    assert (counts(call), call.answer.decode_steps) == ([(1, 9), (2, 13), (3, 14), (4, 17)], 4)


def test_of_two_choices_the_first_is_the_answer_and_warnings_say_so():
    """The first choice's text and times are kept; whose tokens the usage counts cannot be told."""
    exchange = stream("chat_two_choices.sse")
    assert (exchange.answer.text, counts(exchange)[-1][1]) == (TEXT, None)
    assert any("further choices" in warning for warning in exchange.warnings)


def test_usage_at_the_end_only_leaves_chunks_uncounted():
    """Without continuous usage times are kept and counts unknown; the steps are told all the same."""
    exchange = stream("chat_final_usage_only.sse")
    assert counts(exchange) == [(1, None), (2, None), (3, None), (4, None), (5, None)]
    assert (exchange.answer.output_tokens, exchange.answer.decode_steps) == (11, 4)


def test_an_average_that_does_not_fit_the_tokens_is_not_used():
    """A quotient that is no whole number of iterations is named; neither it nor no average gives steps."""
    body = read_payload("tensorrtllm", "chat_eagle3.sse")
    odd = play_by_event(TENSORRT_LLM, body.replace(b"2.200000047683716", b"2.05"))
    assert odd.answer.decode_steps is None
    assert any("does not go into 11 tokens" in warning for warning in odd.warnings)
    none = play_by_event(TENSORRT_LLM, body.replace(b"avg_decoded_tokens_per_iter", b"something_else"))
    assert (none.outcome, none.answer.decode_steps, none.warnings) == ("ok", None, ())


def test_a_failure_in_mid_stream_is_a_cut_stream():
    """An exception in the server ends the stream without its end marker; what came before is kept."""
    exchange = stream("chat_cut.sse")
    assert (exchange.outcome, exchange.answer.text) == ("cut", "The quick brown 🦊 jumps over")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("error_unknown_field.json", "Extra inputs are not permitted"),
        ("error_generation.json", "max_num_tokens"),
    ],
)
def test_error_bodies_are_quoted(name, said):
    """A refusal keeps the status and the server's words, in either of its two forms."""
    exchange = play(TENSORRT_LLM, [(read_payload("tensorrtllm", name), 1)], status=400)
    assert (exchange.outcome, exchange.http_status) == ("http_error", 400)
    assert said in str(exchange.error)


def test_nothing_is_asked_that_the_server_would_refuse():
    """The richest item yields only fields that the release's request has."""
    item = build_item(
        sampling=Sampling(temperature=0.7, top_p=0.9, top_k=20),
        stop=("\n",),
        tools=({"type": "function", "function": {"name": "find"}},),
        response_schema={"type": "object"},
    )
    payload = TENSORRT_LLM.build_payload(item, seed=3, served_model="m")
    assert payload.keys() <= REQUEST_FIELDS
    assert payload["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_counters_by_position_are_found_under_the_engines_names():
    """Drafted, accepted and steps are sums over positions and the count at position 0."""
    series = TENSORRT_LLM.facts.series
    before, after = (read_series("tensorrtllm", f"metrics_eagle3_{end}.prom") for end in ("before", "after"))
    names = ("spec_steps", "draft_tokens", "accepted_tokens", "generation_tokens", "finished_requests")
    gained = [gain(before, after, *getattr(series, name)) for name in names]
    assert gained == [4, 12, 6, 11, 1]
    assert series.accepted_by_position is not None
    assert series.drafted_by_position is not None
    assert sum_by_label(after, *series.accepted_by_position) == {"0": 83, "1": 52, "2": 21}
    assert sum_by_label(after, *series.drafted_by_position) == {"0": 104, "1": 104, "2": 104}
    assert [first_sum(after, getattr(series, name)) for name in ("running", "waiting", "cache_usage")] == [
        1,
        0,
        0.0125,
    ]


def test_an_unknown_overhead_is_no_measurement():
    """The draft overhead reads 0.0 in one-model mode, so drafting time is not read from it."""
    after = read_series("tensorrtllm", "metrics_eagle3_after.prom")
    assert first_sum(after, ("trtllm_spec_decode_draft_overhead",)) == 0.0
    assert (TENSORRT_LLM.facts.series.draft_seconds, TENSORRT_LLM.facts.series.verify_seconds) == ((), ())


def identify(metrics):
    paths = {"version": "version.json", "v1__models": "models.json", METRICS: metrics}
    return TENSORRT_LLM.read_identity(read_bodies("tensorrtllm", **paths))


def test_the_configuration_gauges_disclose_the_settings():
    """Method, draft length, drafter, precision, context and cache come from labels in the metrics."""
    identity = identify("metrics_eagle3_after.prom")
    assert (identity.engine, identity.version) == ("tensorrt-llm", "1.3.0rc18")
    assert identity.settings == {
        "dtype": "bfloat16", "quantization": "none", "max_model_len": 8192,
        "platform.accelerator": "NVIDIA H100",
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "context_parallel_size": 1,
        "free_gpu_memory_fraction": 0.9, "kv_cache.enable_block_reuse": True,
        "kv_cache.enable_partial_reuse": True, "kv_cache.dtype": "auto",
        "speculation.method": "Eagle3", "speculation.num_spec_tokens": 3, "drafter": "example/eagle3-head",
    }  # fmt: skip


def test_off_is_said_only_where_the_configuration_is_disclosed():
    """Gauges without one for speculation mean off; no gauges at all mean nothing."""
    assert identify("metrics_off.prom").settings["speculation.method"] == "off"
    silent = TENSORRT_LLM.read_identity(read_bodies("tensorrtllm", version="version.json"))
    assert (silent.engine, silent.version, silent.settings) == (None, "1.3.0rc18", {})
    page = TENSORRT_LLM.read_identity({"/version": b"<html>", "/prometheus/metrics": b"\xff<html>"})
    assert (page.engine, page.version, page.settings) == (None, None, {})
    assert TENSORRT_LLM.facts.find_release("1.2.1") is None
    assert TENSORRT_LLM.facts.find_release("1.3.0rc18") is not None


def flags(text):
    return TENSORRT_LLM.read_flags(["trtllm-serve", "example/target-8b", *text.split()])


def test_flags_do_not_guess_what_a_config_file_says():
    """With a config file the method is open; without one the server cannot draft."""
    assert flags("--port 8000 --max_batch_size 8") == {"max_batch_size": 8, "speculation.method": "off"}
    assert flags("--config a.yaml --tp_size 2 --max_seq_len 4096 --trust_remote_code") == {
        "config": "a.yaml", "tensor_parallel_size": 2, "max_model_len": 4096, "trust_remote_code": True,
    }  # fmt: skip
    assert flags("--extra_llm_api_options a.yaml") == {"config": "a.yaml"}


def read_log(name):
    return read_payload("tensorrtllm", name).decode()


def test_the_log_tells_what_speculation_switched():
    """A switched-off overlap scheduler and a fallback to greedy decoding become settings."""
    assert TENSORRT_LLM.read_log(read_log("log_ngram.txt")) == {"disable_overlap_scheduler": True}
    assert TENSORRT_LLM.read_log(read_log("log_greedy_fallback.txt")) == {"speculation.greedy_fallback": True}
    assert TENSORRT_LLM.read_log(read_log("log_gate.txt")) == {}


def test_proof_comes_from_the_counters():
    """Steps, drafted and accepted tokens over the test request are those of its counters."""
    before, after = (read_series("tensorrtllm", f"metrics_eagle3_{end}.prom") for end in ("before", "after"))
    answer = stream("chat_eagle3.sse").answer
    proof = prove_speculation(
        TENSORRT_LLM, ProbeObservation(settings=ON, answer=answer, before=before, after=after)
    )
    told = (proof.num_spec_steps, proof.num_draft_tokens, proof.num_accepted_draft_tokens)
    assert (proof.state, told) == ("drafting", (4, 12, 6))


def test_a_tripped_gate_is_named():
    """The gate that ends speculation for good shows in the log only, and its figures are quoted."""
    after = read_series("tensorrtllm", "metrics_eagle3_after.prom")
    evidence = ProbeObservation(settings=ON, before=after, after=after, log=read_log("log_gate.txt"))
    proof = prove_speculation(TENSORRT_LLM, evidence)
    assert proof.state == "idle"
    assert "for good" in str(proof.cause)
    assert "0.310 < threshold 0.5" in str(proof.cause)


def explain(**fields):
    evidence = ProbeObservation(**({"settings": ON} | fields))
    return TENSORRT_LLM.explain_off(evidence) or TENSORRT_LLM.explain_idle(evidence)


def test_idle_drafters_are_explained():
    """A missing configuration, missing metrics and a server that never drafted are told apart."""
    after = read_series("tensorrtllm", "metrics_eagle3_after.prom")
    assert "speculative_config" in explain(settings={"speculation.method": "off"})
    assert "return_perf_metrics" in explain()
    assert "max_concurrency" in explain(after=read_series("tensorrtllm", "metrics_off.prom"))
    assert explain(after=after) is None


def test_lossy_settings_are_named():
    """Relaxed acceptance and a greedy fallback change the distribution; other settings do not."""
    assert TENSORRT_LLM.find_lossy(ON) is None
    assert "relaxed" in str(
        TENSORRT_LLM.find_lossy({**ON, "speculation.use_relaxed_acceptance_for_thinking": True})
    )
    assert "greedily" in str(TENSORRT_LLM.find_lossy({**ON, "speculation.greedy_fallback": True}))
    assert TENSORRT_LLM.find_lossy({"speculation.method": "off", "speculation.greedy_fallback": True}) is None
