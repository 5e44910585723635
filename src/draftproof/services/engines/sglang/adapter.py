"""SGLang: asked for its record of speculation, counted by continuous usage.

Names and words: release 0.5.23, `srt/entrypoints/openai/protocol.py` and `serving_chat.py` beside it,
`srt/managers/tokenizer_manager.py`, `srt/observability/metrics_collector.py` and
`srt/arg_groups/speculative_hook.py`.
docs/engines/sglang.md tells users where each number comes from and where the engine's own ones mislead.

One SGLang answer: its record of speculation in our definitions, and the tokens its stream holds back.

Pure. Fields: release 0.5.23, `SpecTokensDetails` in `srt/entrypoints/openai/protocol.py`, filled by
`_calculate_spec_decoding_metrics` in `srt/managers/tokenizer_manager.py` and by `_resolve_spec_v2_tokens` in
`srt/managers/scheduler_components/batch_result_processor.py`.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from draftproof.core.records import SpecCounts
from draftproof.services.engines.adapter import EngineAdapter, ProbeObservation
from draftproof.services.engines.chat.fold import ChatFold
from draftproof.services.engines.chat.frames import EngineBlocks
from draftproof.services.engines.chat.metrics_block import MetricsReading
from draftproof.services.engines.chat.token_counts import CountedChunk
from draftproof.services.engines.facts import (
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
from draftproof.services.engines.protocol import Answer
from draftproof.services.engines.sglang.settings import ALIASES, name_settings, read_flags, vary_sglang
from draftproof.services.engines.values import as_text, decode_object, list_cards, read_nccl, sum_series


class _Details(msgspec.Struct, frozen=True):
    """`spec_tokens_details`; its rates and lengths are left unread, for they follow other definitions.

    `spec_num_proposed_drafts` is the configured width of a step times the steps. The cap histogram (DSpark)
    holds the steps by the length of their verified window, the target's own token included.
    """

    spec_verify_ct: int = 0
    spec_num_correct_drafts: int | None = None
    spec_num_proposed_drafts: int | None = None
    spec_correct_drafts_histogram: tuple[int, ...] = ()
    spec_cap_lens_histogram: tuple[int, ...] = ()

    @property
    def accepted(self) -> int | None:
        """Accepted drafts without the target's own tokens; what a release does not state is not none."""
        if not self.spec_correct_drafts_histogram:
            return self.spec_num_correct_drafts
        return _weigh(self.spec_correct_drafts_histogram)

    @property
    def drafted(self) -> int | None:
        """Verified drafts, by the steps' windows where these are stated, else by the engine's estimate."""
        if not self.spec_cap_lens_histogram:
            return self.spec_num_proposed_drafts
        return _weigh(self.spec_cap_lens_histogram) - sum(self.spec_cap_lens_histogram)


def read_details(blocks: EngineBlocks) -> MetricsReading:
    """Return what the `sglext` block of an answer says of its speculation."""
    block = blocks.sglext.get("spec_tokens_details") if isinstance(blocks.sglext, dict) else None
    if block is None:
        return MetricsReading()
    stated = block[0] if isinstance(block, list) and block else block
    try:
        details = msgspec.convert(stated, _Details)
    except msgspec.ValidationError as error:
        return MetricsReading(warnings=(f"spec_tokens_details cannot be read: {error}",))
    verified, accepted, drafted = details.spec_verify_ct, details.accepted, details.drafted
    if not verified or accepted is None:
        return MetricsReading()
    # With several choices the usage is of all of them, the details are of each.
    steps = _count_steps(verified, accepted, None if isinstance(block, list) else blocks.output_tokens)
    if drafted is None or drafted < max(accepted, verified):
        said = f"{drafted} drafts cannot hold {accepted} accepted ones in {verified} steps"
        return MetricsReading(decode_steps=steps, warnings=(said,))
    counts = SpecCounts(
        num_spec_steps=verified,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
        acceptance_histogram=details.spec_correct_drafts_histogram,
    )
    return MetricsReading(speculation=counts, decode_steps=steps)


def _weigh(histogram: tuple[int, ...]) -> int:
    return sum(index * count for index, count in enumerate(histogram))


def _count_steps(verified: int, accepted: int, output_tokens: int | None) -> int:
    """Return the decode steps: verified ones, and one for each token that no verified step explains.

    Such tokens come from steps that mix prefill with decoding, where nothing is drafted and the engine counts
    no verification. The first token of an answer is the prefill's.
    """
    unexplained = 0 if output_tokens is None else output_tokens - 1 - accepted - verified
    return verified + max(0, unexplained)


class HeldTailFold(ChatFold):
    """Counts the last chunk of a tool call, and an answer without any content.

    The rest of a tool call's arguments is sent when the answer is complete, without a count; the usage after
    it states it. An answer that is an end token alone has one chunk, the closing one.
    """

    def finish(self) -> Answer:
        """Return what was said so far."""
        total = self._usage.stated
        if total and self._finish is not None and not self._other_choices:
            *earlier, last = self._marks or [CountedChunk(self._finish.arrival_ns, None, total, None, 0)]
            if earlier and last.usage is None and all(mark.usage is not None for mark in earlier):
                last = msgspec.structs.replace(last, usage=total)
            self._marks = [*earlier, last]
        return super().finish()


_FAMILIES: dict[str, Family] = {
    "NGRAM": "ngram",
    "STANDALONE": "draft_model",
    "EAGLE": "attached",
    "EAGLE3": "attached",
    "FROZEN_KV_MTP": "attached",
    "DFLASH": "attached",
    "DSPARK": "attached",
    "UNO": "self",
}
# Of several hundred start arguments those that bear on speed, memory or sampling; `speculative_*` join them.
_STATED = (
    *("model_path", "revision", "load_format", "dtype", "quantization", "kv_cache_dtype", "device"),
    *("tp_size", "pp_size", "dp_size", "enable_dp_attention", "page_size", "mem_fraction_static"),
    "max_running_requests",
    *("max_total_tokens", "chunked_prefill_size", "max_prefill_tokens", "schedule_policy"),
    *("attention_backend", "sampling_backend", "grammar_backend", "stream_interval"),
    *("disable_radix_cache", "disable_cuda_graph", "disable_overlap_schedule", "enable_mixed_chunk"),
    "enable_deterministic_inference",
)
_CONCURRENCY = "effective_max_running_requests_per_dp"
_RUNNING, _DEFAULT_RUNNING = "capacity.max_running_requests", 48
_RESET_CONCURRENCY = re.compile(r"Max running requests is reset to (\d+) for speculative decoding")
_NO_ADAPTING = re.compile(r"speculative_adaptive disabled: (.+?)\. Falling back")
_ACTIVE_STEPS = "sglang:spec_num_steps"


def _read_identity(bodies: Mapping[str, bytes]) -> Identity:
    """Read /server_info (older releases: /get_server_info) and /v1/models."""
    stated = decode_object(bodies.get("/server_info")) or decode_object(bodies.get("/get_server_info"))
    card, version = next(iter(list_cards(bodies)), {}), as_text(stated.get("version"))
    settings = _read_arguments(stated) if "speculative_algorithm" in stated else {}
    length = card.get("max_model_len")
    if isinstance(length, int):
        settings["max_model_len"] = length
    is_known = version is not None or card.get("owned_by") == "sglang"
    return Identity(
        engine="sglang" if is_known else None,
        version=version,
        settings=settings,
    )


def _read_arguments(stated: dict[str, Any]) -> Settings:
    """Return the arguments in force, and what the scheduler makes of them on the memory that it finds."""
    wanted = {key: stated[key] for key in _STATED if key in stated}
    drafting = {key: value for key, value in stated.items() if key.startswith("speculative_")}
    states = stated.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    if isinstance(state.get(_CONCURRENCY), int):
        wanted[_RUNNING] = state[_CONCURRENCY]
    return name_settings(wanted | drafting)


def _read_log(text: str) -> Settings:
    settings = read_nccl(text)
    if found := _RESET_CONCURRENCY.search(text):
        settings["max_running_requests"] = int(found[1])
    if "Mixed chunked prefill is disabled" in text:
        settings["enable_mixed_chunk"] = False
    if "Overlap schedule is not implemented for speculative decoding on CPU" in text:
        settings["disable_overlap_schedule"] = True
    if _NO_ADAPTING.search(text):
        settings["speculation.adaptive"] = False
    return settings


def _explain_off(evidence: ProbeObservation) -> str | None:
    if evidence.settings.get(METHOD) == OFF:
        return "the server runs without --speculative-algorithm"
    # Without adapting, look-up shows a gauge of zero as well.
    is_adapting = evidence.settings.get("speculation.adaptive") is True
    if is_adapting and evidence.after is not None and sum_series(evidence.after, _ACTIVE_STEPS) == 0:
        return "the adaptive table has set the draft length to zero at this batch size"
    return None


def _explain_idle(evidence: ProbeObservation) -> str | None:
    answer = evidence.answer
    counts = None if answer is None else answer.speculation
    if counts is not None and counts.num_spec_steps and not counts.num_accepted_draft_tokens:
        return "every draft was rejected: the drafter was not made for this target"
    if answer is not None and answer.output_tokens is not None and answer.output_tokens <= 1:
        return "the test request ended with its first token, before any draft"
    if counts is None and evidence.after is None:
        return "the answer has no sglext block, and there are no metrics without --enable-metrics"
    return None


def _find_lossy(settings: Settings) -> str | None:
    if settings.get(METHOD, OFF) in {OFF, None}:
        return None
    for key in ("speculation.accept_threshold_single", "speculation.accept_threshold_acc"):
        value = settings.get(key)
        if isinstance(value, int | float) and value < 1:
            return f"{key} is {value}: below 1, drafts are kept that the target would not have sampled"
    if settings.get("env.SGLANG_SIMULATE_ACC_LEN") is not None:
        return "SGLANG_SIMULATE_ACC_LEN is set, so drafts are accepted by chance"
    if settings.get("device") in {"cpu", "xpu"}:
        return f"on {settings['device']} verification takes the likeliest token, whatever the temperature"
    return None


_PASSES = "sglang:forward_execution_seconds_total"
_MIXED = ("NGRAM", "STANDALONE", "UNO", "FROZEN_KV_MTP")
_WITH_WEIGHTS = ("STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "DFLASH", "DSPARK", "UNO")
_CONFOUNDS = (
    Confound(
        text="unless --max-running-requests is given, at most 48 requests run at once",
        settings=("max_running_requests", _RUNNING),
        forces={"max_running_requests": _DEFAULT_RUNNING},
        pin=f"--max-running-requests {_DEFAULT_RUNNING}",
    ),
    Confound(
        text="mixed chunked prefill is switched off",
        settings=("enable_mixed_chunk",),
        forces={"enable_mixed_chunk": False},
        pin="no --enable-mixed-chunk",
        methods=_MIXED,
    ),
    Confound(
        text="in a step that mixes prefill with decoding, running requests decode one token without drafts",
        settings=("enable_mixed_chunk",),
        pin="no --enable-mixed-chunk in any arm",
        methods=("EAGLE", "EAGLE3", "DFLASH", "DSPARK"),
    ),
    Confound(
        text="on a CPU the overlap schedule is switched off",
        settings=("disable_overlap_schedule",),
        forces={"disable_overlap_schedule": True},
        pin="--disable-overlap-schedule",
    ),
    Confound(
        text="the share of memory that the server chooses for weights and cache may be another",
        settings=("mem_fraction_static",),
        forces={"mem_fraction_static": None},
        pin="the candidate's --mem-fraction-static",
    ),
    Confound(
        text="a tree of drafts rules out the default attention kernels on Hopper and Blackwell",
        settings=("attention_backend",),
        forces={"attention_backend": None},
        pin="the candidate's --attention-backend",
    ),
    Confound(
        text="the drafter's weights and its cache, one slot for each slot of the target, leave less cache",
        settings=("max_total_tokens",),
        pin="--max-total-tokens in every arm",
        methods=_WITH_WEIGHTS,
    ),
    Confound(
        text="the lookup trie is shared by all requests and outlives them, so drafts depend on earlier ones",
        pin="none; the same items in the same order in every arm, and no other clients",
        methods=("NGRAM",),
    ),
)
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
_BUT_FOR_BLOCKS = tuple(method for method in _FAMILIES if method not in {"DFLASH", "DSPARK"})
_REFUSES = (
    Feature(text="min_p is ignored in silence", fields=("min_p",)),
    Feature(
        text="custom logit processors are ignored in silence, but for DFLASH and DSPARK",
        fields=("custom_logit_processor",),
        methods=_BUT_FOR_BLOCKS,
    ),
    Feature(
        text="penalties, logit bias and custom logit processors are refused by UNO",
        fields=(*_PENALTIES, "logit_bias", "custom_logit_processor"),
        methods=("UNO",),
    ),
    Feature(
        text="penalties are taken once for all drafts of a step, so the answers are not quite the target's",
        fields=_PENALTIES,
        is_inexact=True,
    ),
    Feature(
        text="return_sampling_mask is refused, but for DFLASH and DSPARK",
        fields=("return_sampling_mask",),
        methods=_BUT_FOR_BLOCKS,
    ),
)
# Of `ChatCompletionRequest`, python/sglang/srt/entrypoints/openai/protocol.py.
_REQUEST_FIELDS = frozenset(
    (
        "cache_salt", "chat_template_kwargs", "continue_final_message", "custom_logit_processor",
        "custom_params", "ebnf", "extra_key", "frequency_penalty", "ignore_eos", "input_ids", "logit_bias",
        "logprobs", "lora_path", "min_p", "min_tokens", "n", "ngram_corpus_id", "no_stop_trim",
        "parallel_tool_calls", "presence_penalty", "priority", "reasoning", "reasoning_effort", "regex",
        "repetition_penalty", "response_format", "return_hidden_states", "return_meta_info",
        "return_token_ids", "rid", "routed_dp_rank", "separate_reasoning", "session_id", "session_params",
        "skip_special_tokens", "stop_regex", "stop_token_ids", "stream_reasoning", "task", "top_logprobs",
        "user",
    )
)  # fmt: skip
_LACKS = (
    Feature(
        text="token ids in a chat stream: return_token_ids is refused there", fields=("return_token_ids",)
    ),
    Feature(text="speculation switched per request"),
    Feature(text="a counter of drafted or accepted tokens, and acceptance by position, in the metrics"),
)


# With --enable-metrics-for-all-schedulers every rank states what its scheduler does; an empty priority is the
# total beside its parts.
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
_SIGNALS = Signals(
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


_HEAD_STEPS = (
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)
_STARTING = Starting(
    programs=(("-m", "sglang.launch_server"), ("sglang", "serve")),
    command=(
        *("python3", "-m", "sglang.launch_server", "--model-path", "{model}"),
        *("--host", "127.0.0.1", "--port", "{port}", "--context-length", "4096"),
    ),
    model_flags=("--model-path", "--model"),
    measured=(
        (("--disable-radix-cache",), "a prompt that is asked at a second load is not in the cache"),
        (("--enable-metrics",), "counters of tokens and drafts"),
        (("--decode-log-interval", "1"), "its gauges of acceptance cover one logging interval: one step"),
    ),
    env={"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1"},  # seconds of drafting and verifying in the metrics
    methods={
        "ngram": Method(
            spelled="NGRAM",
            add=("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"),
        ),
        "draft_model": Method(
            spelled="STANDALONE",
            add=(
                *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", "{draft}"),
                *_HEAD_STEPS,
            ),
            needs_draft=True,
        ),
        "eagle3": Method(
            spelled="EAGLE3",
            add=(
                *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "{draft}"),
                *_HEAD_STEPS,
            ),
            needs_draft=True,
        ),
        "mtp": Method(
            spelled="EAGLE",
            add=(
                *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "1"),
                *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "2"),
            ),
        ),
    },
    alternative=("--chunked-prefill-size", "512"),
    alternative_keys=("chunked_prefill_size",),
)

SGLANG = EngineAdapter(
    starting=_STARTING,
    fold=HeldTailFold,
    facts=EngineFacts(
        name="sglang",
        title="SGLang",
        checked=(Release("0.5.23", "source"),),
        families=_FAMILIES,
        aliases=ALIASES,
        identity_paths=("/server_info", "/get_server_info", "/v1/models"),
        environment_prefixes=("SGLANG_", "SGL_"),
        ready_paths=("/health", "/v1/models"),
        series=Series(
            spec_steps=("sglang:spec_verify_calls_total",),
            generation_tokens=("sglang:generation_tokens_total",),
            prompt_tokens=("sglang:prompt_tokens_total",),
            finished_requests=("sglang:num_requests_total",),
            preemptions=("sglang:num_retracted_requests_total",),
            prefix_queries=("sglang:prompt_tokens_total",),
            prefix_hits=("sglang:cached_tokens_total",),
            running=("sglang:num_running_reqs",),
            waiting=("sglang:num_queue_reqs",),
            cache_usage=("sglang:token_usage",),
            draft_seconds=tuple(
                f'{_PASSES}{{category="{category}"}}'
                for category in ("eagle_draft", "eagle_draft_extend", "draft_extend_v2", "frozen_kv_draft")
            ),
            verify_seconds=(f'{_PASSES}{{category="target_verify"}}',),
        ),
        confounds=_CONFOUNDS,
        refuses=_REFUSES,
        lacks=_LACKS,
        request_fields=_REQUEST_FIELDS,
        pausing={"speculation.adaptive": ()},
        fallback="a drafter that cannot be loaded stops the start; there is no fallback per request",
        chunk_holds="step",
        device_factors=("tp_size", "pp_size", "dp_size"),
        inner_factors={"dp_size": "enable_dp_attention"},
    ),
    signals=_SIGNALS,
    vary=vary_sglang,
    ask=lambda _item: {"return_spec_tokens_details": True},
    read_blocks=read_details,
    read_identity=_read_identity,
    read_flags=read_flags,
    read_log=_read_log,
    explain_off=_explain_off,
    explain_idle=_explain_idle,
    find_lossy=_find_lossy,
)
