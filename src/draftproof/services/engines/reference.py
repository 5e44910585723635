"""The reference engine: asked for token ids and for its record of every round."""

from collections.abc import Mapping

import msgspec

from draftproof.services.engines.adapter import EngineAdapter, ProbeObservation
from draftproof.services.engines.chat.metrics_block import read_metrics
from draftproof.services.engines.commands import parse_flags
from draftproof.services.engines.facts import (
    NO_CACHE_SHARE,
    NO_PREEMPTIONS,
    DecodeTime,
    EngineFacts,
    Feature,
    Identity,
    Method,
    Release,
    Sample,
    Series,
    Signals,
    Starting,
)
from draftproof.services.engines.values import as_table, as_text, decode_object, name_facts

REFERENCE_ENGINE = "draftproof-reference"
_DEFAULT_CONTEXT = 2048  # of `draftproof serve`
_SPEC = "draftproof:spec_decode_num"
# The plan names every drafting setting under `speculation.`; the service states these without it.
_PLAN_NAMES = {name: f"speculation.{name}" for name in ("ngram_min", "ngram_max")}


def _read_identity(bodies: Mapping[str, bytes]) -> Identity:
    stated = decode_object(bodies.get("/version"))
    config = as_table(stated.get("config"))
    return Identity(
        engine=as_text(stated.get("engine")),
        version=as_text(stated.get("version")),
        settings=name_facts(as_table(stated.get("platform")))
        | {
            _PLAN_NAMES.get(key, key): value if isinstance(value, str | int | float) else None
            for key, value in config.items()
        },
    )


def _explain_idle(evidence: ProbeObservation) -> str | None:
    method = evidence.settings.get("speculation.method")
    return None if method in {None, "off"} else f"the drafter of {method} is idle"


_SIGNALS = Signals(
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
    drafting=Sample(f"{_SPEC}_drafts_total", is_optional=True),
    accepted=Sample(f"{_SPEC}_accepted_tokens_total"),
    steps=Sample(f"{_SPEC}_drafts_total"),
    running=Sample("draftproof:num_requests_running"),
    waiting=Sample("draftproof:num_requests_waiting"),
    model_label="model_name",
    missing={"cache_usage": NO_CACHE_SHARE, "preemptions_per_request": NO_PREEMPTIONS},
)


def _drafting(method: str) -> Method:
    return Method(
        spelled=method,
        add=("--speculation", method, "--num-spec-tokens", "4"),
        settings={"speculation.method": method, "speculation.num_spec_tokens": 4},
    )


_STARTING = Starting(
    programs=(("draftproof", "serve"),),
    settings={
        "speculation.method": "off",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "num_threads": 2,
    },
    methods={name: _drafting(name) for name in ("ngram", "draft_model", "attached", "self")},
    model_flags=("--model",),
    own_model="builtin:smollm2-135m-instruct",
    alternative=("--max-num-batched-tokens", "64"),
    alternative_settings={"max_num_batched_tokens": 64},
    alternative_keys=("max_num_batched_tokens",),
    placement="together",
    ready_s=300.0,
    peak=8,
)

REFERENCE = EngineAdapter(
    starting=_STARTING,
    facts=EngineFacts(
        name="reference",
        title="the reference engine",
        checked=(Release("0.1", "live"),),
        families={"ngram": "ngram", "draft_model": "draft_model", "attached": "attached", "self": "self"},
        series=Series(
            spec_steps=(f"{_SPEC}_drafts_total",),
            draft_tokens=(f"{_SPEC}_draft_tokens_total",),
            accepted_tokens=(f"{_SPEC}_accepted_tokens_total",),
            accepted_by_position=(f"{_SPEC}_accepted_tokens_per_pos_total", "position"),
            generation_tokens=("draftproof:generation_tokens_total",),
            prompt_tokens=("draftproof:prompt_tokens_total",),
            finished_requests=("draftproof:request_success_total",),
            engine_steps=("draftproof:engine_steps_total",),
            running=("draftproof:num_requests_running",),
            waiting=("draftproof:num_requests_waiting",),
            draft_seconds=("draftproof:draft_seconds_total",),
            verify_seconds=("draftproof:verify_seconds_total",),
        ),
        lacks=(
            Feature(text="prompt logprobs", fields=("prompt_logprobs",)),
            Feature(text="beam search", fields=("use_beam_search",)),
            Feature(text="lists of banned or allowed tokens", fields=("allowed_token_ids", "bad_words")),
            Feature(
                text="regex, choice and grammar constraints",
                fields=("guided_regex", "guided_choice", "guided_grammar"),
            ),
            Feature(text="a chat template in the request", fields=("chat_template", "chat_template_kwargs")),
            Feature(text="continuing a given answer", fields=("continue_final_message",)),
            Feature(text="images and audio"),
        ),
        pausing={"speculation.policy": ("adaptive", "batch", "auto")},
        fallback="a request whose drafter fails is completed by ordinary decoding and counted",
        chunk_holds="step",
        states_all=True,
        is_exact=True,
    ),
    signals=_SIGNALS,
    ask=lambda _item: {"return_token_ids": True, "return_round_metrics": True},
    read_blocks=read_metrics,
    read_identity=_read_identity,
    read_context=lambda command: parse_flags(command).get("max_model_len", _DEFAULT_CONTEXT),
    read_flags=lambda _command: {},  # it states its whole configuration itself, under the names of a plan
    explain_idle=_explain_idle,
    render_switch=lambda speculation: {"speculation": msgspec.to_builtins(speculation)},
)
