"""TensorRT-LLM: asked for nothing beyond the protocol, because it refuses fields that it does not know.

Names and words: the PyTorch backend of 1.3 (main, September 2026), `tensorrt_llm/serve/openai_protocol.py`,
`postprocess_handlers.py` and `openai_server.py` beside it, `tensorrt_llm/metrics/collector.py`,
`tensorrt_llm/llmapi/llm_args.py`, `tensorrt_llm/_torch/speculative/speculation_gate.py`.
docs/engines/tensorrt-llm.md tells users where each number comes from and where the engine's own ones mislead.
"""

import re
from collections.abc import Mapping, Sequence

from draftproof.services.engines.adapter import EngineAdapter, ProbeObservation
from draftproof.services.engines.chat.frames import EngineBlocks
from draftproof.services.engines.chat.metrics_block import MetricsReading
from draftproof.services.engines.commands import UNCOMPARED_FLAGS, parse_flags
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
from draftproof.services.engines.values import (
    as_text,
    decode_object,
    first_sum,
    list_cards,
    name_facts,
    parse_series,
)

_METRICS = "/prometheus/metrics"
_FAMILIES: dict[str, Family] = {
    "NGram": "ngram",
    "SA": "ngram",
    "AUTO": "ngram",
    "Draft_Target": "draft_model",
    "DraftTarget": "draft_model",
    "PARD": "draft_model",
    "Eagle": "attached",
    "Eagle3": "attached",
    "MTP": "attached",
    "DFlash": "attached",
    "DSpark": "attached",
    "Medusa": "attached",
    "Lookahead": "self",
}
# One flag has several spellings; two arms that spell it differently are still alike.
_FLAG_NAMES = {
    "extra_llm_api_options": "config",
    "max_seq_len": "max_model_len",
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "cp_size": "context_parallel_size",
    "ep_size": "moe_expert_parallel_size",
    "cluster_size": "moe_cluster_parallel_size",
    "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
}
_SWITCHES = frozenset(
    {"trust_remote_code", "enable_chunked_prefill", "fail_fast_on_attention_window_too_large"}
)
# Gauges of constant value 1 whose labels are the configuration; what each label is called in settings.
_CONFIG_LABELS: dict[str, dict[str, str]] = {
    "trtllm_model_config_info": {
        "dtype": "dtype",
        "quantization": "quantization",
        "max_model_len": "max_model_len",
    },
    "trtllm_parallel_config_info": {
        "tensor_parallel_size": "tensor_parallel_size",
        "pipeline_parallel_size": "pipeline_parallel_size",
        "context_parallel_size": "context_parallel_size",
        "expert_parallel_size": "moe_expert_parallel_size",
    },
    "trtllm_kv_cache_config_info": {
        "free_gpu_memory_fraction": "free_gpu_memory_fraction",
        "enable_block_reuse": "kv_cache.enable_block_reuse",
        "enable_partial_reuse": "kv_cache.enable_partial_reuse",
        "cache_dtype": "kv_cache.dtype",
    },
    "trtllm_speculative_config_info": {
        "spec_method": METHOD,
        "spec_num_tokens": "speculation.num_spec_tokens",
        "spec_draft_model": "drafter",
    },
}
_SPEC_INFO, _MODEL_INFO = "trtllm_speculative_config_info", "trtllm_model_config_info"
_GATE = re.compile(r"\[SpeculationGate\] Speculative decoding disabled: ([^\n]+)")
_NO_OVERLAP = re.compile(r"Disable overlap scheduler for speculation mode (\w+)")
_GREEDY = "Falling back to greedy decoding for"
_WHOLE = 0.01  # the quotient is a 32-bit number; of a true count it is off by far less


def _read_passes(blocks: EngineBlocks) -> MetricsReading:
    """Return the decode steps in `avg_decoded_tokens_per_iter`: tokens over passes, the prefill included."""
    average, tokens = blocks.tokens_per_iteration, blocks.output_tokens
    if average is None or tokens is None or average <= 0 or tokens < 1:
        return MetricsReading()
    # Every pass gives a token, so an average below 1 is none; one next to 0 has no finite number of passes.
    if average < 1 - _WHOLE:
        return MetricsReading(warnings=(f"avg_decoded_tokens_per_iter is {average:g}, below 1",))
    passes = tokens / average
    if abs(passes - round(passes)) > _WHOLE:
        said = f"avg_decoded_tokens_per_iter {average:g} does not go into {tokens} tokens"
        return MetricsReading(warnings=(said,))
    return MetricsReading(decode_steps=round(passes) - 1)


def _read_identity(bodies: Mapping[str, bytes]) -> Identity:
    """Read /version, /v1/models and, where `return_perf_metrics` is on, the configuration in the metrics."""
    owners = {card.get("owned_by") for card in list_cards(bodies)}
    settings = _read_config(bodies.get(_METRICS, b""))
    return Identity(
        engine="tensorrt-llm" if "tensorrt_llm" in owners or settings else None,
        version=as_text(decode_object(bodies.get("/version")).get("version")),
        settings=settings,
    )


def _read_config(exposition: bytes) -> Settings:
    """Return the settings in the labels of the configuration gauges; without them nothing is known."""
    lines = exposition.decode("utf-8", "replace").splitlines()
    named = (line for line in lines if line.partition("{")[0] in _CONFIG_LABELS)
    stated = dict(parse_series(line.rpartition(" ")[0]) for line in named)
    if not stated:
        return {}
    settings: Settings = {
        setting: _to_scalar(stated[gauge][label])
        for gauge, names in _CONFIG_LABELS.items()
        for label, setting in names.items()
        if label in stated.get(gauge, {})
    }
    settings |= name_facts({"accelerator": stated.get(_MODEL_INFO, {}).get("gpu_type")})
    if _SPEC_INFO not in stated:
        settings[METHOD] = OFF
    return settings


def _to_scalar(text: str) -> str | int | float | bool:
    """Return a label's value as Python wrote it: a truth value, a number or text."""
    if text in {"True", "False"}:
        return text == "True"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _read_flags(command: Sequence[str]) -> Settings:
    """Return the settings of a launch command.

    How a server drafts stands in the file that `--config` names and nowhere else; without one it does not.
    """
    settings = parse_flags(command, names=_FLAG_NAMES, switches=_SWITCHES, ignored=UNCOMPARED_FLAGS)
    return settings if "config" in settings else settings | {METHOD: OFF}


def _read_log(text: str) -> Settings:
    settings: Settings = {}
    if _NO_OVERLAP.search(text):
        settings["disable_overlap_scheduler"] = True
    if _GREEDY in text:
        settings["speculation.greedy_fallback"] = True
    return settings


def _explain_off(evidence: ProbeObservation) -> str | None:
    if found := _GATE.search(evidence.log):
        return f"the speculation gate has switched drafting off for good ({found[1].strip()})"
    if evidence.settings.get(METHOD) == OFF:
        return "the server runs without a speculative_config"
    return None


def _explain_idle(evidence: ProbeObservation) -> str | None:
    if evidence.after is None:
        return f"there are no metrics at {_METRICS}: the config file lacks return_perf_metrics: true"
    if first_sum(evidence.after, _DRAFTED) is None:
        return "no draft was counted since the start: max_concurrency or draft_len_schedule may forbid drafts"
    return None


def _find_lossy(settings: Settings) -> str | None:
    if settings.get(METHOD) == OFF:
        return None
    if settings.get("speculation.use_relaxed_acceptance_for_thinking") is True:
        return "relaxed acceptance keeps drafts that are merely among the likeliest tokens"
    if settings.get("speculation.greedy_fallback") is True:
        return "this release decodes greedily whatever the temperature, unless allow_advanced_sampling is set"
    return None


_DRAFTED_AT, _ACCEPTED_AT = (
    "trtllm_spec_decode_drafted_tokens_total",
    "trtllm_spec_decode_accepted_tokens_total",
)
_DRAFTED = (_DRAFTED_AT, "trtllm_spec_decode_num_draft_tokens_total")
_CONFOUNDS = (
    Confound(
        text="the overlap scheduler is switched off",
        settings=("disable_overlap_scheduler",),
        forces={"disable_overlap_scheduler": True},
        pin="disable_overlap_scheduler: true in its config file",
        methods=("NGram", "User_Provided", "AUTO"),
    ),
    Confound(
        text="the drafter's weights and cache leave less cache for the target",
        settings=("free_gpu_memory_fraction",),
        pin="kv_cache_config: {max_tokens: N} in the config file of every arm",
        methods=("Draft_Target", "DraftTarget", "PARD", "Eagle", "Eagle3", "MTP", "DFlash", "DSpark"),
    ),
    Confound(
        text="the lookup pool is shared by all requests and outlives them, so drafts depend on earlier ones",
        pin="is_public_pool: false (NGram), or no enable_global_pool (SA)",
        methods=("NGram", "SA", "AUTO"),
    ),
    Confound(
        text="everything but the model stands in the file of --config, which is not compared line by line",
        settings=("config",),
        pin="let the files of two arms differ in speculative_config only",
    ),
)
_REFUSES = (
    Feature(text="logprobs are left out with one-model methods, with a line in the log only"),
    Feature(text="logits post-processors are not supported"),
    Feature(
        text="a grammar together with EAGLE-3's dynamic tree lets invalid tokens through (issue 18892)",
        fields=("response_format",),
        methods=("Eagle3",),
        is_inexact=True,
    ),
)
_LACKS = (
    Feature(
        text="request fields beyond its protocol: an unknown one, such as return_token_ids, is refused with "
        "400",
        fields=("return_token_ids",),
    ),
    Feature(text="speculation switched per request"),
    Feature(text="drafted and accepted tokens in an answer; they are counted in the metrics only"),
    Feature(text="time spent drafting: its overhead reads 0.0 where drafter and target are one model"),
)

_SIGNALS = Signals(
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
        "failed_share": HIDDEN_ERRORS,
    },
)


_FILES = (
    "TensorRT-LLM reads how it drafts from a YAML file and nowhere else. Write both files, and name them by",
    "absolute paths; let them differ in nothing that is not shown here. baseline.yaml:",
    "    return_perf_metrics: true           # opens /prometheus/metrics, without which nothing is proven",
    "    enable_iter_perf_stats: true",
    "    kv_cache_config:",
    "      enable_block_reuse: false         # else a prompt asked twice comes from the cache",
    "candidate.yaml: the same, and",
    "    speculative_config:",
)


def _method(spelled: str, *lines: str, needs_draft: bool = False) -> Method:
    return Method(
        spelled=spelled,
        add=("--config", "/FILL_IN/candidate.yaml"),
        needs_draft=needs_draft,
        note=(*_FILES, *(f"      {line}" for line in (f"decoding_type: {spelled}", *lines))),
    )


_STARTING = Starting(
    programs=(("trtllm-serve", "serve"), ("trtllm-serve",)),
    command=(
        *("trtllm-serve", "{model}", "--host", "127.0.0.1", "--port", "{port}", "--backend", "pytorch"),
        *("--max_seq_len", "4096", "--config", "/FILL_IN/baseline.yaml"),
    ),
    methods={
        "ngram": _method(
            "NGram",
            *("max_draft_len: 4", "max_matching_ngram_size: 4"),
            "is_public_pool: false             # else drafts depend on other requests",
        ),
        "draft_model": _method(
            "Draft_Target", "max_draft_len: 4", "speculative_model: {draft}", needs_draft=True
        ),
        "eagle3": _method("Eagle3", "max_draft_len: 3", "speculative_model: {draft}", needs_draft=True),
        "mtp": _method("MTP", "max_draft_len: 1"),
    },
    alternative=("--enable_chunked_prefill", "--max_num_tokens", "1024"),
    alternative_keys=("enable_chunked_prefill", "max_num_tokens"),
    alternative_why="prompts enter in chunks",
    ready_s=1800.0,
)

TENSORRT_LLM = EngineAdapter(
    starting=_STARTING,
    facts=EngineFacts(
        name="tensorrt-llm",
        title="TensorRT-LLM",
        checked=(Release("1.3", "source"),),
        families=_FAMILIES,
        identity_paths=("/version", "/v1/models", _METRICS),
        environment_prefixes=("TLLM_", "TRTLLM_"),
        ready_paths=("/health", "/v1/models"),
        metrics_path=_METRICS,
        series=Series(
            spec_steps=(f'{_DRAFTED_AT}{{token_position="0"}}',),
            draft_tokens=_DRAFTED,
            accepted_tokens=(_ACCEPTED_AT, "trtllm_spec_decode_num_accepted_tokens_total"),
            accepted_by_position=(_ACCEPTED_AT, "token_position"),
            drafted_by_position=(_DRAFTED_AT, "token_position"),
            generation_tokens=("trtllm_generation_tokens_total",),
            prompt_tokens=("trtllm_prompt_tokens_total",),
            finished_requests=("trtllm_request_success_total",),
            running=("trtllm_num_requests_running",),
            waiting=("trtllm_num_requests_waiting",),
            cache_usage=("trtllm_kv_cache_utilization",),
        ),
        confounds=_CONFOUNDS,
        refuses=_REFUSES,
        lacks=_LACKS,
        pausing={
            "speculation.draft_len_schedule": (),
            "speculation.max_concurrency": (),
            "speculation.acceptance_length_threshold": (),
            "speculation.acceptance_rate_threshold": (),
        },
        fallback="none; a gate on acceptance, where configured, switches drafting off for good",
        chunk_holds="step",
        device_factors=("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"),
    ),
    signals=_SIGNALS,
    cannot_vary="its draft length stands in a file of options, and no option that is known accepts none "
    "of the drafts, which it would take",
    read_blocks=_read_passes,
    read_identity=_read_identity,
    read_flags=_read_flags,
    read_log=_read_log,
    explain_off=_explain_off,
    explain_idle=_explain_idle,
    find_lossy=_find_lossy,
)
