"""Made-up traffic of a candidate and a hold-out, as the series that each engine would export of it."""

from collections.abc import Iterator

import msgspec

STEP_S = 60
_BOUNDS = (0.01, 0.02, 0.025, 0.03, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5)
_STEPS = 30


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm does: every request alike, `rps` of them a second on one replica.

    `burst`: requests in flight, scrape by scrape and again and again, instead of `in_flight`.
    """

    rps: float = 1.0
    tokens: int = 51
    tpot_s: float = 0.02
    ttft_s: float = 0.2
    failed: float = 0.0
    acceptance: float = 2.5
    drafts: float = 1.0
    cache: float = 0.5
    preemptions: float = 0.0
    in_flight: int = 4
    burst: tuple[int, ...] = ()
    model: str = "target"
    restarts: bool = False


def series(engine: str, job: str, traffic: Traffic) -> list[dict[str, str]]:
    """Return the input series of promtool's unit tests for one arm."""
    return list(_BY_ENGINE[engine](_Writer(job=job, traffic=traffic)))


class _Writer(msgspec.Struct, frozen=True):
    job: str
    traffic: Traffic

    @property
    def ended(self) -> float:
        """Requests answered in a step."""
        return self.traffic.rps * STEP_S * (1 - self.traffic.failed)

    @property
    def failed(self) -> float:
        """Requests failed in a step."""
        return self.traffic.rps * STEP_S * self.traffic.failed

    @property
    def generated(self) -> float:
        """Tokens of a step."""
        return self.ended * self.traffic.tokens

    @property
    def decode_s(self) -> float:
        """Seconds of decoding in a step: the first token of a request is not among them."""
        return self.ended * (self.traffic.tokens - 1) * self.traffic.tpot_s

    @property
    def drafted(self) -> float:
        """Steps that drafted, each with one or more accepted tokens."""
        return self.traffic.drafts * self.generated / self.traffic.acceptance

    @property
    def accepted(self) -> float:
        """Accepted drafts."""
        return self.drafted * (self.traffic.acceptance - 1)

    def counter(self, name: str, rise: float, **labels: str) -> dict[str, str]:
        """Return a counter; one of tokens begins again half-way where the arm restarts."""
        values = f"0+{rise!r}x{_STEPS}"
        if self.traffic.restarts and "token" in name:
            values = f"0+{rise!r}x{_STEPS // 2 - 1} 0+{rise!r}x{_STEPS // 2}"
        return {"series": self._name(name, labels), "values": values}

    def gauge(self, name: str, value: float, **labels: str) -> dict[str, str]:
        """Return a gauge that stays where it is."""
        return {"series": self._name(name, labels), "values": f"{value!r}+0x{_STEPS}"}

    def in_flight(self, name: str, **labels: str) -> dict[str, str]:
        """Return the gauge of requests in flight, which may come in bursts."""
        burst = self.traffic.burst or (self.traffic.in_flight,)
        values = " ".join(str(burst[at % len(burst)]) for at in range(_STEPS))
        return {"series": self._name(name, labels), "values": values}

    def histogram(self, name: str, value: float, count: float, **labels: str) -> Iterator[dict[str, str]]:
        """Return buckets, sum and count of observations that are all alike."""
        for bound in _BOUNDS:
            yield self.counter(f"{name}_bucket", count if value <= bound else 0.0, le=str(bound), **labels)
        yield self.counter(f"{name}_bucket", count, le="+Inf", **labels)
        yield self.counter(f"{name}_sum", value * count, **labels)
        yield self.counter(f"{name}_count", count, **labels)

    def _name(self, name: str, labels: dict[str, str]) -> str:
        every = {"job": self.job, "instance": "replica-1:8000"} | labels
        return f"{name}{{{','.join(f'{key}={chr(34)}{value}{chr(34)}' for key, value in every.items())}}}"


def _vllm(w: _Writer, prefix: str = "vllm:") -> Iterator[dict[str, str]]:
    labels = {"model_name": w.traffic.model}
    yield w.counter(f"{prefix}generation_tokens_total", w.generated, **labels)
    for reason, rise in (("stop", w.ended), ("error", w.failed), ("abort", 0.0)):
        yield w.counter(f"{prefix}request_success_total", rise, finished_reason=reason, **labels)
    # A slow step each: what this histogram says of the time per token is wrong, and no rule may use it.
    yield from w.histogram(f"{prefix}inter_token_latency_seconds", 2.0, w.drafted, **labels)
    yield from w.histogram(
        f"{prefix}request_time_per_output_token_seconds", w.traffic.tpot_s, w.ended, **labels
    )
    yield from w.histogram(f"{prefix}time_to_first_token_seconds", w.traffic.ttft_s, w.ended, **labels)
    yield w.counter(f"{prefix}spec_decode_num_drafts_total", w.drafted, **labels)
    yield w.counter(f"{prefix}spec_decode_num_accepted_tokens_total", w.accepted, **labels)
    yield w.in_flight(f"{prefix}num_requests_running", **labels)
    yield w.gauge(f"{prefix}num_requests_waiting", 0, **labels)
    if prefix == "draftproof:":
        yield w.counter(f"{prefix}requests_rejected_total", 0.0, **labels)
        return
    yield w.counter("vllm:request_decode_time_seconds_sum", w.decode_s, **labels)
    yield w.counter("vllm:request_generation_tokens_sum", w.generated, **labels)
    yield w.counter("vllm:request_generation_tokens_count", w.ended, **labels)
    yield w.gauge("vllm:kv_cache_usage_perc", w.traffic.cache, **labels)
    yield w.counter("vllm:num_preemptions_total", w.ended * w.traffic.preemptions, **labels)


def _reference(w: _Writer) -> Iterator[dict[str, str]]:
    yield from _vllm(w, "draftproof:")


def _sglang(w: _Writer) -> Iterator[dict[str, str]]:
    labels = {"model_name": w.traffic.model}
    yield w.counter("sglang:generation_tokens_total", w.generated, is_streaming="true", **labels)
    yield w.counter("sglang:num_requests_total", w.ended, is_streaming="true", **labels)
    yield w.counter("sglang:num_aborted_requests_total", w.failed, **labels)
    yield from w.histogram(
        "sglang:inter_token_latency_seconds", w.traffic.tpot_s, w.generated - w.ended, **labels
    )
    yield from w.histogram(
        "sglang:request_time_per_output_token_seconds", w.traffic.tpot_s, w.ended, **labels
    )
    yield from w.histogram("sglang:time_to_first_token_seconds", w.traffic.ttft_s, w.ended, **labels)
    yield w.counter("sglang:spec_verify_calls_total", w.drafted, **labels)
    yield w.gauge("sglang:spec_accept_length", w.traffic.acceptance, tp_rank="0", **labels)
    yield w.gauge("sglang:token_usage", w.traffic.cache, tp_rank="0", **labels)
    yield w.counter(
        "sglang:num_retracted_requests_total", w.ended * w.traffic.preemptions, tp_rank="0", **labels
    )
    yield w.in_flight("sglang:num_running_reqs", tp_rank="0", **labels)
    yield w.gauge("sglang:num_queue_reqs", 0, tp_rank="0", **labels)


def _tensorrt_llm(w: _Writer) -> Iterator[dict[str, str]]:
    labels = {"model_name": w.traffic.model, "engine_type": "pytorch"}
    yield w.counter("trtllm_generation_tokens_total", w.generated, **labels)
    yield w.counter("trtllm_request_success_total", w.ended, finished_reason="stop", **labels)
    yield w.counter("trtllm_request_error_total", w.failed, http_code="500", **labels)
    yield w.counter("trtllm_request_decode_time_seconds_sum", w.decode_s, **labels)
    yield w.counter("trtllm_request_decode_time_seconds_count", w.ended, **labels)
    yield from w.histogram("trtllm_time_per_output_token_seconds", w.traffic.tpot_s, w.ended, **labels)
    yield from w.histogram("trtllm_time_to_first_token_seconds", w.traffic.ttft_s, w.ended, **labels)
    for position in ("0", "1"):
        yield w.counter(
            "trtllm_spec_decode_drafted_tokens_total", w.drafted, token_position=position, **labels
        )
        yield w.counter(
            "trtllm_spec_decode_accepted_tokens_total", w.accepted / 2, token_position=position, **labels
        )
    yield w.gauge("trtllm_kv_cache_utilization", w.traffic.cache, **labels)
    yield w.in_flight("trtllm_num_requests_running", **labels)
    yield w.gauge("trtllm_num_requests_waiting", 0, **labels)


def _llamacpp(w: _Writer) -> Iterator[dict[str, str]]:
    yield w.counter("llamacpp:tokens_predicted_total", w.generated)
    yield w.counter("llamacpp:tokens_predicted_seconds_total", w.decode_s)
    yield w.counter("llamacpp:spec_decode_num_drafts_total", w.drafted)
    yield w.counter("llamacpp:spec_decode_num_accepted_tokens_total", w.accepted)
    yield w.in_flight("llamacpp:requests_processing")
    yield w.gauge("llamacpp:requests_deferred", 0)


def _tgi(w: _Writer) -> Iterator[dict[str, str]]:
    steps = w.generated / w.traffic.acceptance
    yield w.counter("tgi_request_generated_tokens_sum", w.generated)
    yield w.counter("tgi_request_success", w.ended)
    if w.failed:  # TGI exports this counter from its first failure on
        yield w.counter("tgi_request_failure", w.failed, err="generation")
    yield w.counter("tgi_request_inference_duration_sum", w.ended * w.traffic.ttft_s + w.decode_s)
    yield from w.histogram("tgi_request_mean_time_per_token_duration", w.traffic.tpot_s, w.ended)
    yield w.counter("tgi_request_skipped_tokens_sum", w.accepted)
    yield w.counter("tgi_request_skipped_tokens_count", steps)
    yield w.in_flight("tgi_batch_current_size")
    yield w.gauge("tgi_queue_size", 0)


_BY_ENGINE = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt_llm,
    "llamacpp": _llamacpp,
    "tgi": _tgi,
    "reference": _reference,
}
