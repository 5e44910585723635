"""Hugging Face TGI: it sends one event for each token, so its events are counted.

Names and words: release 3.3.7, `router/src/lib.rs`, `chat.rs`, `server.rs` and `validation.rs` beside it,
`backends/v3/src/backend.rs`, `server/text_generation_server/models/__init__.py` and `model.py` beside it.
docs/engines/tgi.md tells users where each number comes from and where the engine's own ones mislead.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from draftproof.services.engines.adapter import EngineAdapter, ProbeObservation
from draftproof.services.engines.chat.fold import ChatFold
from draftproof.services.engines.chat.frames import ChatFrame, Choice, EngineBlocks, Timings
from draftproof.services.engines.chat.metrics_block import MetricsReading, read_metrics
from draftproof.services.engines.chat.token_counts import CountedChunk
from draftproof.services.engines.commands import UNCOMPARED_FLAGS, parse_flags
from draftproof.services.engines.facts import (
    DRAFT_LENGTH,
    METHOD,
    NO_CACHE_SHARE,
    NO_MODEL_LABEL,
    NO_PREEMPTIONS,
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
from draftproof.services.engines.values import as_text, decode_object, name_facts, read_smi, sum_series
from draftproof.workload.items import Item

_FAMILIES: dict[str, Family] = {"n-gram": "ngram", "medusa": "attached", "mlp_speculator": "attached"}
_FLAG_NAMES = {
    "speculate": DRAFT_LENGTH,
    "max_total_tokens": "max_model_len",
    "max_input_length": "max_input_tokens",
}
_UNCOMPARED = UNCOMPARED_FLAGS | {
    *("hostname", "prometheus_port", "master_addr", "master_port", "shard_uds_path", "otlp_endpoint"),
    *("otlp_service_name", "json_output", "usage_stats"),
}
_STATED = ("max_concurrent_requests", "max_input_tokens", "max_stop_sequences")
_SPECULATES = re.compile(r"Using speculation (\S+) with (\d+) input ids")
_CHUNKING = re.compile(r"Using prefill chunking = (True|False)")
_ATTENTION = re.compile(r"Using attention (\S+) - Prefix caching (\S+)")
# What the memory that is left holds: a consequence of the settings, unless the command states it.
_BATCH_ROOM = "capacity.max_batch_total_tokens"
_BUDGET = re.compile(r"Setting max batch total tokens to (\d+)")
# TGI's counters have no `_total`; the reader of the exposition gives it to every counter.
_ACCEPTED = "tgi_request_skipped_tokens_sum"


class _TokenEventFold(ChatFold):
    """Counts events: each carries one token, its text empty for a special one or for half a character.

    That holds for plain answers. Events of a tool call are fewer, because its beginning and its end are held
    back; a count that the usage contradicts is not used.
    """

    takes_each = True

    def __init__(self, read_blocks: Callable[[EngineBlocks], MetricsReading] = read_metrics) -> None:
        super().__init__(read_blocks)
        self._events = 0

    def finish(self) -> Answer:
        """Return what was said so far."""
        if self._tools or self._usage.stated not in {None, self._events}:
            self._marks = list(_keep_content(self._marks))
        return super().finish()

    def _take_choice(self, choice: Choice, frame: ChatFrame, arrival_ns: int) -> None:
        self._events += 1
        counted = msgspec.structs.replace(frame, timings=Timings(predicted_n=self._events))
        super()._take_choice(choice, counted, arrival_ns)


def _keep_content(marks: Iterable[CountedChunk]) -> Iterator[CountedChunk]:
    """Yield the chunks with content of their own, of a stream whose events are not its tokens."""
    chars = usage = 0
    for mark in marks:
        if mark.generated_chars > chars or (mark.usage or 0) > usage:
            yield msgspec.structs.replace(mark, engine=None)
        chars, usage = mark.generated_chars, max(mark.usage or 0, usage)


def _ask(item: Item) -> dict[str, Any]:
    """A top_p of 1 is refused although it is the default, and a schema goes by other names here."""
    asked: dict[str, Any] = {"stream_options": {"include_usage": True}}
    if item.sampling.top_p >= 1:
        asked["top_p"] = None
    if item.response_schema is not None:
        asked["response_format"] = {"type": "json", "value": item.response_schema}
    return asked


def _read_identity(bodies: Mapping[str, bytes]) -> Identity:
    """Read /info. It names the target and its limits, and says nothing about speculation."""
    info = decode_object(bodies.get("/info"))
    build = " ".join(text for key in ("docker_label", "sha") if isinstance(text := info.get(key), str))
    stated = {key: info[key] for key in _STATED if isinstance(info.get(key), int)}
    length, revision = info.get("max_total_tokens"), info.get("model_sha")
    if isinstance(length, int):
        stated["max_model_len"] = length
    if isinstance(revision, str):
        stated["model_sha"] = revision
    return Identity(
        engine="tgi" if info.get("router") == "text-generation-router" else None,
        version=as_text(info.get("version")),
        settings=stated | name_facts({"engine_build": build}),
    )


def _read_flags(command: Sequence[str]) -> Settings:
    """Return the settings of a launch command.

    Whether drafts are looked up or made by heads is decided by the repository that `--model-id` names, and
    heads draft without any flag: the method is known from the log only, unless the length is zero.
    """
    settings = parse_flags(command, names=_FLAG_NAMES, ignored=_UNCOMPARED)
    return settings | {METHOD: OFF} if settings.get(DRAFT_LENGTH) == 0 else settings


def _read_log(text: str) -> Settings:
    settings = read_smi(text)
    if found := _ATTENTION.search(text):
        settings |= {"attention": found[1], "prefix_caching": found[2] in {"true", "1"}}
    if found := _CHUNKING.search(text):
        # This line follows the one about speculation, so without that one nothing drafts.
        settings |= {"prefill_chunking": found[1] == "True", METHOD: OFF}
    if found := _SPECULATES.search(text):
        settings |= {METHOD: found[1], DRAFT_LENGTH: int(found[2])}
    if found := _BUDGET.search(text):
        settings[_BATCH_ROOM] = int(found[1])
    return settings


def _explain_off(evidence: ProbeObservation) -> str | None:
    is_off = OFF in {evidence.settings.get(METHOD), _read_log(evidence.log).get(METHOD)}
    return "the server runs without --speculate" if is_off else None


def _explain_idle(evidence: ProbeObservation) -> str | None:
    if evidence.before is None or evidence.after is None:
        return None
    before, after = (sum_series(scrape, _ACCEPTED) for scrape in (evidence.before, evidence.after))
    if after is not None and after <= (before or 0.0):
        return "no draft was accepted in the test request, and TGI counts only accepted ones"
    return None


_CONFOUNDS = (
    Confound(
        text="prefill is no longer split into chunks",
        settings=("prefill_chunking",),
        forces={"prefill_chunking": False, "env.PREFILL_CHUNKING": "0"},
        pin="PREFILL_CHUNKING=0 in its environment",
    ),
    Confound(
        text="each request reserves room for the drafts of a step, so fewer requests fit in a batch",
        settings=(_BATCH_ROOM, "max_batch_total_tokens"),
        pin="--max-batch-total-tokens in every arm, with room for the drafts",
    ),
    Confound(
        text="heads take memory that the cache of the baseline has",
        settings=(_BATCH_ROOM, "max_batch_total_tokens"),
        pin="--max-batch-total-tokens in every arm",
        methods=("medusa", "mlp_speculator"),
    ),
    Confound(
        text="heads are left out in a step of more than 128 rows, and a whole batch drops its drafts if a "
        "part of it has none",
        pin="none; keep concurrency × (drafts + 1) below 128, or measure above it as well",
        methods=("medusa", "mlp_speculator"),
    ),
)
_REFUSES = (
    Feature(
        text="repetition, presence and frequency penalties judge all drafts of a step by the state before it",
        fields=("repetition_penalty", "presence_penalty", "frequency_penalty"),
        is_inexact=True,
    ),
    Feature(
        text="a grammar, and so tools and a response schema, judges all drafts of a step by the state before "
        "it",
        fields=("tools", "response_format"),
        is_inexact=True,
    ),
    Feature(text="a seed draws other samples than without drafts"),
)
# Of `ChatRequest`, router/src/lib.rs; it has `logit_bias` and `n` too, and uses neither.
_REQUEST_FIELDS = frozenset(
    ("frequency_penalty", "logprobs", "presence_penalty", "response_format", "tool_prompt", "top_logprobs")
)
_LACKS = (
    Feature(
        text="presence_penalty: it is taken for a repetition penalty of 2 more",
        fields=("presence_penalty",),
        is_inexact=True,
    ),
    Feature(text="top_k on chat: it is ignored in silence", fields=("top_k",)),
    Feature(text="top_p of 1: it is refused, and so never sent"),
    Feature(text="token counts before the end of the stream, other than its events"),
    Feature(
        text="drafted tokens, acceptance by position or by request, cache use and preemptions in the metrics"
    ),
    Feature(text="speculation switched per request"),
    Feature(
        text="more than max_stop_sequences stop strings (4, unless the server says otherwise)",
        fields=("stop",),
        at_most=4,
        at_most_setting="max_stop_sequences",
    ),
)

_SIGNALS = Signals(
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
        "cache_usage": NO_CACHE_SHARE,
        "preemptions_per_request": NO_PREEMPTIONS,
        "model": NO_MODEL_LABEL,
    },
    caveats={
        "tail_time_per_token_seconds": "the prefill is part of it",
        "failed_share": "an invalid request of a caller counts as failed (label err)",
        "acceptance_length": "accepted drafts over all decode steps, prefills among them; drafted tokens are "
        "not exported, so an idle drafter is one of which nothing is accepted",
    },
)


_STARTING = Starting(
    programs=(("text-generation-launcher",),),
    command=(
        *("text-generation-launcher", "--model-id", "{model}", "--hostname", "127.0.0.1", "--port", "{port}"),
        *("--max-input-tokens", "3072", "--max-total-tokens", "4096"),
    ),
    model_flags=("--model-id",),
    port_flags=("--port", "-p"),
    host_flag="--hostname",
    measured=((("--speculate", "0"), "heads in the model's own repository would draft otherwise"),),
    env={"PREFIX_CACHING": "0"},  # a prompt that is asked at a second load is not in the cache
    methods={"ngram": Method(spelled="n-gram", add=("--speculate", "2"))},
    # No more prompt tokens in a step than one prompt may have.
    alternative=("--max-batch-prefill-tokens", "3072"),
    alternative_keys=("max_batch_prefill_tokens",),
    alternative_why="fewer prompts enter together",
)

TGI = EngineAdapter(
    starting=_STARTING,
    fold=_TokenEventFold,
    facts=EngineFacts(
        name="tgi",
        title="Hugging Face TGI",
        checked=(Release("3.3", "source"),),
        families=_FAMILIES,
        identity_paths=("/info", "/v1/models"),
        environment_prefixes=("PREFILL_", "PREFIX_", "SPECULATE"),
        ready_paths=("/health", "/info"),
        series=Series(
            accepted_tokens=(_ACCEPTED,),
            generation_tokens=("tgi_request_generated_tokens_sum",),
            prompt_tokens=("tgi_request_input_length_sum",),
            finished_requests=("tgi_request_success_total",),
            engine_steps=('tgi_batch_inference_count_total{method="decode"}',),
            running=("tgi_batch_current_size",),
            waiting=("tgi_queue_size",),
        ),
        confounds=_CONFOUNDS,
        refuses=_REFUSES,
        lacks=_LACKS,
        request_fields=_REQUEST_FIELDS,
        fallback="none; look-up always proposes something, heads are skipped in large batches",
        chunk_holds="token",
        device_factors=("num_shard",),
    ),
    signals=_SIGNALS,
    cannot_vary="it has no option that fixes the acceptance of drafts, which it would take",
    ask=_ask,
    read_identity=_read_identity,
    read_flags=_read_flags,
    read_log=_read_log,
    explain_off=_explain_off,
    explain_idle=_explain_idle,
)
