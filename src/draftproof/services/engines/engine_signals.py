"""The signals of every engine, under the names that Prometheus sees.

Names: vLLM 0.32.0 `vllm/v1/metrics/loggers.py`; SGLang 0.5.23 `observability/metrics_collector.py`;
TensorRT-LLM `tensorrt_llm/metrics/collector.py`; llama.cpp b11434 `tools/server`; TGI 3.3 `router/src`. TGI's
counters have no ending `_total`; a parser that adds one does not change what Prometheus stores.
"""

from draftproof.services.engines.signals import DecodeTime, Sample, Signals

_STEP_GAPS = (
    "vllm:inter_token_latency_seconds has one observation a decode step and not a token: "
    "speculation makes it look slower, so nothing here uses it"
)
_HIDDEN_ERRORS = "requests refused before they reach the engine are not in its metrics"
_SPEC = "spec_decode_num"
_RESERVED = "the engine exports no share of its key-value cache"
_NO_PREEMPTIONS = "the engine exports no counter of preemptions"

VLLM = Signals(
    title="vLLM",
    tokens=(Sample("vllm:generation_tokens_total"),),
    finished=(Sample("vllm:request_success_total"),),
    attempted=(
        Sample("vllm:request_success_total"),
        Sample("vllm:admission_rejections_total", is_optional=True),
    ),
    failed=(
        Sample("vllm:request_success_total", 'finished_reason="error"'),
        Sample("vllm:admission_rejections_total", is_optional=True),
    ),
    decode_time=DecodeTime(
        seconds=Sample("vllm:request_decode_time_seconds_sum"),
        tokens=Sample("vllm:request_generation_tokens_sum"),
        first_tokens=Sample("vllm:request_generation_tokens_count"),
    ),
    tpot_bucket="vllm:request_time_per_output_token_seconds_bucket",
    ttft_bucket="vllm:time_to_first_token_seconds_bucket",
    drafting=Sample(f"vllm:{_SPEC}_drafts_total", is_optional=True),
    accepted=Sample(f"vllm:{_SPEC}_accepted_tokens_total"),
    steps=Sample(f"vllm:{_SPEC}_drafts_total"),
    cache_usage=Sample("vllm:kv_cache_usage_perc"),
    preemptions=Sample("vllm:num_preemptions_total"),
    running=Sample("vllm:num_requests_running"),
    waiting=Sample("vllm:num_requests_waiting"),
    model_label="model_name",
    caveats={
        "time_per_token_seconds": _STEP_GAPS,
        "tail_time_per_token_seconds": "an answer of one token counts as 0 s",
        "failed_share": _HIDDEN_ERRORS,
    },
)

# With --enable-metrics-for-all-schedulers every rank states what its scheduler does; an empty priority is the
# total beside its parts.
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")

SGLANG = Signals(
    title="SGLang",
    tokens=(Sample("sglang:generation_tokens_total"),),
    finished=(Sample("sglang:num_requests_total"),),
    attempted=(
        Sample("sglang:num_requests_total"),
        Sample("sglang:num_aborted_requests_total", is_optional=True),
    ),
    failed=(Sample("sglang:num_aborted_requests_total", is_optional=True),),
    decode_time=DecodeTime(
        seconds=Sample("sglang:inter_token_latency_seconds_sum"),
        tokens=Sample("sglang:inter_token_latency_seconds_count"),
    ),
    tpot_bucket="sglang:request_time_per_output_token_seconds_bucket",
    ttft_bucket="sglang:time_to_first_token_seconds_bucket",
    drafting=Sample("sglang:spec_verify_calls_total", is_optional=True),
    acceptance_gauge=Sample("sglang:spec_accept_length"),
    cache_usage=Sample("sglang:token_usage"),
    preemptions=Sample("sglang:num_retracted_requests_total", replica_labels=_RANKS),
    running=Sample("sglang:num_running_reqs", 'priority=""', replica_labels=_RANKS),
    waiting=Sample("sglang:num_queue_reqs", 'priority=""', replica_labels=_RANKS),
    model_label="model_name",
    caveats={
        "time_per_token_seconds": (
            "this engine divides a gap by the tokens it brought and counts each, so sum over count is "
            "the time per token; the metrics need --enable-metrics"
        ),
        "failed_share": "aborted requests are counted, those of a caller who hung up among them",
        "acceptance_length": "a gauge over the last decode steps, which keeps its value while idle",
        "drafting": "a release without this counter looks idle",
    },
)

TENSORRT_LLM = Signals(
    title="TensorRT-LLM",
    tokens=(Sample("trtllm_generation_tokens_total"),),
    finished=(Sample("trtllm_request_success_total"),),
    attempted=(
        Sample("trtllm_request_success_total"),
        Sample("trtllm_request_error_total", is_optional=True),
    ),
    failed=(Sample("trtllm_request_error_total", is_optional=True),),
    decode_time=DecodeTime(
        seconds=Sample("trtllm_request_decode_time_seconds_sum"),
        tokens=Sample("trtllm_generation_tokens_total"),
        first_tokens=Sample("trtllm_request_decode_time_seconds_count"),
    ),
    tpot_bucket="trtllm_time_per_output_token_seconds_bucket",
    ttft_bucket="trtllm_time_to_first_token_seconds_bucket",
    drafting=Sample("trtllm_spec_decode_drafted_tokens_total", is_optional=True),
    accepted=Sample("trtllm_spec_decode_accepted_tokens_total", is_optional=True),
    steps=Sample("trtllm_spec_decode_drafted_tokens_total", 'token_position="0"'),
    cache_usage=Sample("trtllm_kv_cache_utilization"),
    running=Sample("trtllm_num_requests_running"),
    waiting=Sample("trtllm_num_requests_waiting"),
    model_label="model_name",
    missing={"preemptions_per_request": "only a gauge of paused requests is exported"},
    caveats={
        "time_per_token_seconds": "the metrics need return_perf_metrics; scrape /prometheus/metrics",
        "failed_share": _HIDDEN_ERRORS,
    },
)

LLAMACPP = Signals(
    title="llama.cpp",
    tokens=(Sample("llamacpp:tokens_predicted_total"),),
    decode_time=DecodeTime(
        seconds=Sample("llamacpp:tokens_predicted_seconds_total"),
        tokens=Sample("llamacpp:tokens_predicted_total"),
        caveat="the first token of each answer is among the tokens, its time is not among the seconds",
    ),
    drafting=Sample(f"llamacpp:{_SPEC}_drafts_total", is_optional=True),
    accepted=Sample(f"llamacpp:{_SPEC}_accepted_tokens_total"),
    steps=Sample(f"llamacpp:{_SPEC}_drafts_total"),
    running=Sample("llamacpp:requests_processing"),
    waiting=Sample("llamacpp:requests_deferred"),
    missing={
        "tail_time_per_token_seconds": "the engine exports no histogram",
        "tail_ttft_seconds": "the engine exports no histogram",
        "failed_share": "the engine counts neither requests nor failures",
        "cache_usage": _RESERVED,
        "preemptions_per_request": _NO_PREEMPTIONS,
        "model": "its metrics carry no model label",
    },
    caveats={
        "time_per_token_seconds": "counters move when an answer ends: a long one shows late; needs --metrics",
        "finished_requests": "requests are not counted: generated tokens stand in for them in every floor",
    },
)

TGI = Signals(
    title="TGI",
    tokens=(Sample("tgi_request_generated_tokens_sum"),),
    finished=(Sample("tgi_request_success"),),
    attempted=(Sample("tgi_request_success"), Sample("tgi_request_failure", is_optional=True)),
    failed=(Sample("tgi_request_failure", is_optional=True),),
    decode_time=DecodeTime(
        seconds=Sample("tgi_request_inference_duration_sum"),
        tokens=Sample("tgi_request_generated_tokens_sum"),
        caveat="the prefill is among the seconds: prompts that grew look like slower tokens",
    ),
    tpot_bucket="tgi_request_mean_time_per_token_duration_bucket",
    drafting=Sample("tgi_request_skipped_tokens_sum", is_optional=True),
    accepted=Sample("tgi_request_skipped_tokens_sum"),
    steps=Sample("tgi_request_skipped_tokens_count"),
    running=Sample("tgi_batch_current_size"),
    waiting=Sample("tgi_queue_size"),
    missing={
        "tail_ttft_seconds": "the engine exports no time to first token",
        "cache_usage": _RESERVED,
        "preemptions_per_request": _NO_PREEMPTIONS,
        "model": "its metrics carry no model label",
    },
    caveats={
        "tail_time_per_token_seconds": "the prefill is part of it",
        "failed_share": "an invalid request of a caller counts as failed (label err)",
        "acceptance_length": "accepted drafts over all decode steps, prefills among them; drafted tokens are "
        "not exported, so an idle drafter is one of which nothing is accepted",
    },
)

REFERENCE = Signals(
    title="reference engine",
    tokens=(Sample("draftproof:generation_tokens_total"),),
    finished=(Sample("draftproof:request_success_total"),),
    attempted=(Sample("draftproof:request_success_total"), Sample("draftproof:requests_rejected_total")),
    failed=(
        Sample("draftproof:request_success_total", 'finished_reason="error"'),
        Sample("draftproof:requests_rejected_total"),
    ),
    decode_time=DecodeTime(
        seconds=Sample("draftproof:request_time_per_output_token_seconds_sum"),
        tokens=Sample("draftproof:request_time_per_output_token_seconds_count"),
        caveat="a mean over requests, in which a short answer weighs as much as a long one",
    ),
    tpot_bucket="draftproof:request_time_per_output_token_seconds_bucket",
    ttft_bucket="draftproof:time_to_first_token_seconds_bucket",
    drafting=Sample(f"draftproof:{_SPEC}_drafts_total", is_optional=True),
    accepted=Sample(f"draftproof:{_SPEC}_accepted_tokens_total"),
    steps=Sample(f"draftproof:{_SPEC}_drafts_total"),
    running=Sample("draftproof:num_requests_running"),
    waiting=Sample("draftproof:num_requests_waiting"),
    model_label="model_name",
    missing={"cache_usage": _RESERVED, "preemptions_per_request": _NO_PREEMPTIONS},
)

_UNKNOWN = "nothing is known of this service's metrics"
GENERIC = Signals(
    title="a service of which only the answers are known",
    missing=dict.fromkeys(
        (
            "time_per_token_seconds",
            "tail_time_per_token_seconds",
            "tail_ttft_seconds",
            "failed_share",
            "drafting",
            "acceptance_length",
            "cache_usage",
            "preemptions_per_request",
            "requests_in_flight",
            "model",
            "restarts",
        ),
        _UNKNOWN,
    ),
)

_BY_ENGINE = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "tensorrt-llm": TENSORRT_LLM,
    "llamacpp": LLAMACPP,
    "tgi": TGI,
    "reference": REFERENCE,
}


def find_signals(engine: str) -> Signals:
    """Return the signals of an engine by its name in a plan; those of no engine for any other name."""
    return _BY_ENGINE.get(engine, GENERIC)
