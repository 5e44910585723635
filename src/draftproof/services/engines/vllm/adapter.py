"""vLLM: asked for the ids of every chunk; its counters come with the final usage.

Names and words: release 0.32.0, `vllm/v1/metrics/loggers.py`, `vllm/v1/spec_decode/metrics.py`,
`vllm/entrypoints/generate/base/protocol.py` and `vllm/config/`. docs/engines/vllm.md tells users where each
number comes from and where vLLM's own mislead.
"""

import json
from collections.abc import Mapping

import msgspec

from draftproof.judge.metrics.acceptance import bound_decode_steps
from draftproof.services.engines.adapter import EngineAdapter, ProbeObservation
from draftproof.services.engines.chat.frames import EngineBlocks
from draftproof.services.engines.chat.metrics_block import MetricsReading, read_metrics
from draftproof.services.engines.facts import (
    HIDDEN_ERRORS,
    METHOD,
    OFF,
    Confound,
    DecodeTime,
    EngineFacts,
    Family,
    Feature,
    Identity,
    Method,
    Release,
    Sample,
    Series,
    Settings,
    Signals,
    Starting,
)
from draftproof.services.engines.values import as_text, decode_object, first_sum, list_cards
from draftproof.services.engines.vllm.settings import (
    ALIASES,
    CACHE_TOKENS,
    CUDAGRAPH_MODE,
    RUNNER,
    SCHEDULED_TOKENS,
    read_flags,
    read_log,
    read_server_info,
    vary_vllm,
)

_FAMILIES: dict[str, Family] = {
    "ngram": "ngram",
    "ngram_gpu": "ngram",
    "suffix": "ngram",
    "draft_model": "draft_model",
    "eagle": "attached",
    "eagle3": "attached",
    "mtp": "attached",
    "medusa": "attached",
    "mlp_speculator": "attached",
    "dflash": "attached",
    "dspark": "attached",
}
_HEADS = ("eagle", "eagle3", "mtp")
_SERVER_INFO = "/server_info?config_format=json"
_SCHEDULE = "speculation.num_speculative_tokens_per_batch_size"
_SAMPLER = "speculation.rejection_sample_method"
# What keeps the target's distribution; "strict" and "probabilistic" are the words of earlier releases.
_EXACT_SAMPLERS = ("standard", "block", "strict", "probabilistic")
_SPEC = "vllm:spec_decode_num"
_SERIES = Series(
    spec_steps=(f"{_SPEC}_drafts_total",),
    draft_tokens=(f"{_SPEC}_draft_tokens_total",),
    accepted_tokens=(f"{_SPEC}_accepted_tokens_total",),
    accepted_by_position=(f"{_SPEC}_accepted_tokens_per_pos_total", "position"),
    generation_tokens=("vllm:generation_tokens_total",),
    prompt_tokens=("vllm:prompt_tokens_total",),
    finished_requests=("vllm:request_success_total",),
    # A histogram of tokens per engine step; its name ends in _total by accident.
    engine_steps=("vllm:iteration_tokens_total_count",),
    preemptions=("vllm:num_preemptions_total",),
    prefix_queries=("vllm:prefix_cache_queries_total",),
    prefix_hits=("vllm:prefix_cache_hits_total",),
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    cache_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
)


def _read_blocks(blocks: EngineBlocks) -> MetricsReading:
    """Read the `metrics` block; the steps come from the chunks, each of which holds one.

    Fewer chunks than tokens and acceptance allow were joined on their way and tell nothing. More are named:
    an answer whose tokens come one by one has a chunk for each accepted draft.
    """
    reading = read_metrics(blocks)
    counts, total = reading.speculation, blocks.output_tokens
    if counts is None or total is None:
        return reading
    bounds, steps = bound_decode_steps(total, counts), blocks.content_chunks - 1
    is_joined = bounds is not None and steps < bounds[0]
    return reading if is_joined else msgspec.structs.replace(reading, decode_steps=steps)


def _read_identity(bodies: Mapping[str, bytes]) -> Identity:
    """Read /version and /v1/models, and /server_info where development mode has it."""
    is_vllm = any(card.get("owned_by") == "vllm" for card in list_cards(bodies))
    info = decode_object(bodies.get(_SERVER_INFO))
    return Identity(
        engine="vllm" if is_vllm or info else None,
        version=as_text(decode_object(bodies.get("/version")).get("version")),
        settings=read_server_info(info),
    )


def _explain_off(evidence: ProbeObservation) -> str | None:
    if evidence.settings.get(METHOD) == OFF:
        return "vLLM runs without a --speculative-config, so nothing drafts"
    if _drafts_for_one(evidence.settings.get(_SCHEDULE)) == 0:
        return "num_speculative_tokens_per_batch_size gives 0 drafts to a batch of one request"
    return None


def _explain_idle(evidence: ProbeObservation) -> str | None:
    settings, drafted = evidence.settings, _count_drafts(evidence)
    method = settings.get(METHOD)
    if evidence.after is not None and drafted is None:
        return "the metrics have no counters of drafts: speculation is not configured, or log stats are off"
    if drafted:
        return _explain_refused(settings)
    if method in {"ngram", "ngram_gpu", "suffix"}:
        shortest = settings.get("speculation.prompt_lookup_min")
        window = "" if shortest is None else f" (prompt_lookup_min is {shortest})"
        return f"{method} found no match in the test request{window}"
    return None


def _explain_refused(settings: Settings) -> str | None:
    """Name why drafts were made and none was taken."""
    if settings.get(_SAMPLER) == "synthetic":
        return "synthetic acceptance refuses every draft"
    if settings.get(METHOD) == "draft_model":
        return (
            "vLLM compares the vocabularies of draft and target by size only: with another tokenizer of "
            "equal size no draft is right"
        )
    return "no draft was right; beyond its own context length a drafter proposes zeros that are all refused"


def _drafts_for_one(schedule: object) -> int | None:
    """Return the draft length of a schedule [[from, to, length], ...] for one request, None without one."""
    if not isinstance(schedule, str):
        return None
    try:
        rows = msgspec.json.decode(schedule, type=list[tuple[int, int, int]])
    except msgspec.MsgspecError:
        return None
    return next((length for start, end, length in rows if start <= 1 <= end), None)


def _count_drafts(evidence: ProbeObservation) -> float | None:
    """Return the drafts of the test request, by its answer or by what the service's counter gained."""
    speculation = None if evidence.answer is None else evidence.answer.speculation
    if speculation is not None:
        return speculation.num_draft_tokens
    after = first_sum(evidence.after or {}, _SERIES.draft_tokens)
    return None if after is None else after - (first_sum(evidence.before or {}, _SERIES.draft_tokens) or 0.0)


def _find_lossy(settings: Settings) -> str | None:
    sampler = settings.get(_SAMPLER)
    if sampler == "synthetic":
        return (
            "drafts are accepted by chance (rejection_sample_method synthetic): answers are not the target's"
        )
    if sampler is not None and sampler not in _EXACT_SAMPLERS:
        return f"rejection_sample_method {sampler} is not known to keep the target's distribution"
    return None


_CONFOUNDS = (
    Confound(
        text="asynchronous scheduling, on by default on a GPU, is switched off",
        settings=("async_scheduling",),
        forces={"async_scheduling": False},
        pin="--no-async-scheduling",
        methods=("ngram", "suffix", "medusa", "mlp_speculator", "custom_class", "extract_hidden_states"),
    ),
    Confound(
        text="model runner V2, on by default where Triton runs, is left for V1",
        settings=(RUNNER,),
        forces={RUNNER: "V1", "env.VLLM_USE_V2_MODEL_RUNNER": "0"},
        pin="VLLM_USE_V2_MODEL_RUNNER=0 in its environment",
        methods=("suffix", "medusa", "mlp_speculator", "custom_class"),
    ),
    Confound(
        text="parallel drafting, and a draft model of another vocabulary, leave model runner V2 for V1",
        settings=(RUNNER,),
        forces={RUNNER: "V1", "env.VLLM_USE_V2_MODEL_RUNNER": "0"},
        pin="VLLM_USE_V2_MODEL_RUNNER=0 in its environment",
        methods=("draft_model", *_HEADS),
    ),
    Confound(
        text="the drafter's layers take part of the key-value cache, so fewer tokens fit",
        settings=(CACHE_TOKENS,),
        pin="--num-gpu-blocks-override in every arm; the drafter's memory then comes on top",
        methods=("draft_model", "dflash", "dspark", *_HEADS),
    ),
    Confound(
        text="every running request takes further token slots of a step's budget, so less prefill fits in it",
        settings=(SCHEDULED_TOKENS, "max_num_batched_tokens"),
        pin="--max-num-batched-tokens in every arm, with room for max_num_seqs × (draft length + 1)",
    ),
    Confound(
        text="the last block of a cached prefix is computed anew, so fewer prefix tokens are reused",
        settings=("enable_prefix_caching",),
        pin="--no-enable-prefix-caching in every arm",
        methods=(*_HEADS, "dflash", "dspark"),
    ),
    Confound(
        text="a draft length by batch size forces CUDA graphs to PIECEWISE on model runner V1, and is "
        "replaced by the fixed length when data_parallel_size is above 1",
        settings=(CUDAGRAPH_MODE, "data_parallel_size"),
        forces={CUDAGRAPH_MODE: "PIECEWISE"},
        pin="--compilation-config.cudagraph_mode PIECEWISE",
    ),
    Confound(
        text="verification lacks full CUDA graphs on some attention back ends",
        settings=(CUDAGRAPH_MODE,),
        forces={CUDAGRAPH_MODE: "PIECEWISE"},
        pin="--compilation-config.cudagraph_mode PIECEWISE",
    ),
    Confound(
        text="on a CPU without Intel's OpenMP in LD_PRELOAD verification is slowed more than plain decoding",
        pin="LD_PRELOAD of libiomp5.so in the environment of every arm",
    ),
)
_REFUSES = (
    Feature(
        text="min_p and logit_bias: status 400, and on a stream status 200 with an error event",
        fields=("min_p", "logit_bias"),
    ),
    Feature(text="custom logits processors: the server does not start"),
    Feature(text="structured output by lm-format-enforcer"),
)
# Of `ChatCompletionRequest`, vllm/entrypoints/openai/chat_completion/protocol.py.
_REQUEST_FIELDS = frozenset(
    (
        "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "cache_salt",
        "chat_template", "chat_template_kwargs", "continue_final_message", "documents", "echo",
        "ec_transfer_params", "frequency_penalty", "ignore_eos", "include_reasoning",
        "include_stop_str_in_output", "kv_transfer_params", "length_penalty", "logit_bias",
        "logprob_token_ids", "logprobs", "media_io_kwargs", "min_p", "min_tokens", "mm_processor_kwargs",
        "n", "parallel_tool_calls", "presence_penalty", "priority", "prompt_logprobs", "reasoning_effort",
        "repetition_detection", "repetition_penalty", "request_id", "response_format", "return_token_ids",
        "return_tokens_as_token_ids", "session_id", "skip_special_tokens", "spaces_between_special_tokens",
        "stop_token_ids", "stream_interval", "structured_outputs", "thinking_token_budget", "top_logprobs",
        "truncate_prompt_tokens", "truncation_side", "use_beam_search", "user", "vllm_xargs",
    )
)  # fmt: skip
_LACKS = (
    Feature(text="speculation switched per request"),
    Feature(text="time spent drafting and verifying, each for itself"),
    Feature(text="drafted tokens by position"),
    Feature(text="acceptance of a request with n above 1, or of one that a stop string ended"),
)

_SIGNALS = Signals(
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
    drafting=Sample(f"{_SPEC}_drafts_total", is_optional=True),
    accepted=Sample(f"{_SPEC}_accepted_tokens_total"),
    steps=Sample(f"{_SPEC}_drafts_total"),
    cache_usage=Sample("vllm:kv_cache_usage_perc"),
    preemptions=Sample("vllm:num_preemptions_total"),
    running=Sample("vllm:num_requests_running"),
    waiting=Sample("vllm:num_requests_waiting"),
    model_label="model_name",
    caveats={
        "time_per_token_seconds": (
            "vllm:inter_token_latency_seconds has one observation a decode step and not a token: "
            "speculation makes it look slower, so nothing here uses it"
        ),
        "tail_time_per_token_seconds": "an answer of one token counts as 0 s",
        "failed_share": HIDDEN_ERRORS,
    },
)


def _method(name: str, tokens: int, **further: str | int) -> Method:
    config = {"method": name, "num_speculative_tokens": tokens, **further}
    flags = ("--speculative-config", json.dumps(config, separators=(",", ":")))
    return Method(spelled=name, add=flags, needs_draft="model" in further)


_STARTING = Starting(
    programs=(("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server")),
    command=(
        "vllm",
        "serve",
        "{model}",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--max-model-len",
        "4096",
    ),
    model_flags=("--model",),
    measured=(
        (("--no-enable-prefix-caching",), "a prompt that is asked at a second load is not in the cache"),
        (("--enable-per-request-metrics",), "queue and prefill times of each request"),
    ),
    # A server without speculation refuses it.
    measured_drafting=("--per-request-spec-decode-metrics", "detailed"),
    env={"VLLM_SERVER_DEV_MODE": "1"},  # opens /server_info, which states the settings in force
    methods={
        "ngram": _method("ngram", 4, prompt_lookup_min=2, prompt_lookup_max=4),
        "draft_model": _method("draft_model", 4, model="{draft}"),
        "eagle3": _method("eagle3", 3, model="{draft}"),
        "mtp": _method("mtp", 1),
    },
    alternative=("--max-num-batched-tokens", "512"),
    alternative_keys=("max_num_batched_tokens",),
)

VLLM = EngineAdapter(
    starting=_STARTING,
    facts=EngineFacts(
        name="vllm",
        title="vLLM",
        checked=(Release("0.32", "live"),),
        families=_FAMILIES,
        aliases=ALIASES,
        identity_paths=("/version", "/v1/models", _SERVER_INFO),
        environment_prefixes=("VLLM_",),
        ready_paths=("/health", "/v1/models"),
        series=_SERIES,
        confounds=_CONFOUNDS,
        refuses=_REFUSES,
        lacks=_LACKS,
        request_fields=_REQUEST_FIELDS,
        pausing={_SCHEDULE: ()},
        fallback="a drafter that cannot be loaded stops the start; a step without a draft decodes ordinarily",
        chunk_holds="step",
        device_factors=("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    ),
    signals=_SIGNALS,
    vary=vary_vllm,
    lookup_stands_in=True,
    ask=lambda _item: {"return_token_ids": True},
    read_blocks=_read_blocks,
    read_identity=_read_identity,
    read_flags=read_flags,
    read_log=read_log,
    explain_off=_explain_off,
    explain_idle=_explain_idle,
    find_lossy=_find_lossy,
)
