"""Reads the bodies of OpenAI-form requests: known fields checked one by one, unknown fields ignored.

Pure. A value that this engine cannot honour is refused by name; it is never silently dropped. Extensions
have vLLM's names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

import msgspec

from draftproof.reference.http.tools import FORCING, read_schema
from draftproof.reference.http.wire_fields import (
    BadRequestError,
    read_biases,
    read_flag,
    read_integer,
    read_number,
    read_strings,
    read_token_ids,
    refuse_unless_neutral,
    shown,
)
from draftproof.reference.types import DraftPolicy, SamplingParams, SpeculationMethod, SpeculationParams

T = TypeVar("T")

MAX_SPEC_TOKENS = 64
MAX_CHOICES = 16
_MAX_STOP_STRINGS = 16
_MAX_STOP_TOKEN_IDS = 64
_MAX_LOGPROBS = 20
_MAX_BIASES = 1024
_MAX_BIAS = 100.0
_MAX_REPETITION_PENALTY = 10.0
_MAX_CHARS_PER_TOKEN = 64  # no text of more than so many a token fits; a longer one is not worth encoding
_METHODS: tuple[SpeculationMethod, ...] = get_args(SpeculationMethod)
_POLICIES: tuple[DraftPolicy, ...] = get_args(DraftPolicy)

# Fields that would change the answer and that this engine does not implement, with their neutral values.
_NOT_IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "prompt_logprobs": (None,),
    "echo": (None, False),
    "suffix": (None, ""),
    "use_beam_search": (None, False),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "include_stop_str_in_output": (None, False),
    "skip_special_tokens": (None, True),
    "truncate_prompt_tokens": (None,),
    "logits_processors": (None, []),
    "guided_regex": (None,),
    "guided_choice": (None, []),
    "guided_grammar": (None,),
}
_NOT_IMPLEMENTED_IN_CHAT: dict[str, tuple[Any, ...]] = {
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "continue_final_message": (None, False),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
}
_NOT_IMPLEMENTED_IN_COMPLETIONS: dict[str, tuple[Any, ...]] = {"top_logprobs": (None, 0)}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for besides its prompt.

    `max_tokens` None means up to the context's end. `n` counts the choices. `constrained_by` is the field
    that gave the JSON schema of the sampling.
    """

    max_tokens: int | None
    n: int
    constrained_by: str | None
    sampling: SamplingParams
    speculation: SpeculationParams
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    return_round_metrics: bool

    @property
    def forced_call(self) -> bool:
        """Whether the answer is the call of a tool."""
        return self.constrained_by == FORCING

    def field_of(self, place: str | None) -> str | None:
        """Return the request's field for what the engine calls `place`."""
        return self.constrained_by if place == "json_schema" else place


def parse_wanted(
    body: Mapping[str, Any],
    default: SpeculationParams,
    served_model: str,
    *,
    chat: bool,
    max_choices: int = MAX_CHOICES,
) -> Wanted:
    """Return the checked fields of a request: everything but the prompt.

    `default`: speculation where the request says nothing about it. `served_model`: the only model a request
    may name. `chat`: chat form, or plain completion form. `max_choices`: the most choices a request may ask
    for. Raises BadRequestError: names the first field at fault.
    """
    _check_model(body, served_model)
    refuse_unless_neutral(
        body, _NOT_IMPLEMENTED | (_NOT_IMPLEMENTED_IN_CHAT if chat else _NOT_IMPLEMENTED_IN_COMPLETIONS)
    )
    stream = read_flag(body, "stream")
    options = _stream_options(body, stream=stream)
    limits = [read_integer(body, name, 1, 1 << 31) for name in ("max_completion_tokens", "max_tokens")]
    max_tokens = next((limit for limit in limits if limit is not None), None)
    schema = read_schema(body, chat=chat)
    return Wanted(
        max_tokens=max_tokens,
        n=_choices(body, max_choices),
        constrained_by=schema and schema[0],
        sampling=_sampling(body, max_tokens or 1, schema and schema[1], chat=chat),
        speculation=_speculation(body.get("speculation"), default),
        stream=stream,
        include_usage=read_flag(options, "include_usage", "stream_options.")
        or read_flag(options, "continuous_usage_stats", "stream_options."),
        continuous_usage=read_flag(options, "continuous_usage_stats", "stream_options."),
        return_token_ids=read_flag(body, "return_token_ids"),
        return_round_metrics=read_flag(body, "return_round_metrics"),
    )


def limit_tokens(wanted: Wanted, prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """Return the sampling with its token limit set, given what the prompt leaves of the context.

    Raises BadRequestError: prompt and answer do not fit the context, or the answer may not become as long as
    it must.
    """
    room = max_model_len - prompt_tokens
    if room < 1:
        raise BadRequestError(
            f"The prompt has {prompt_tokens} tokens and the context holds {max_model_len}, answer included.",
            "prompt",
            code="context_length_exceeded",
        )
    if wanted.max_tokens is not None and wanted.max_tokens > room:
        raise BadRequestError(
            f"max_tokens is {wanted.max_tokens}, and after a prompt of {prompt_tokens} tokens "
            f"the context of {max_model_len} has room for {room}.",
            "max_tokens",
            code="context_length_exceeded",
        )
    limit = wanted.max_tokens or room
    if wanted.sampling.min_tokens > limit:
        raise BadRequestError(
            f"min_tokens is {wanted.sampling.min_tokens}, and the answer may have {limit} tokens.",
            "min_tokens",
        )
    return msgspec.structs.replace(wanted.sampling, max_tokens=limit)


def check_text_length(text: str, max_model_len: int) -> None:
    """Raise BadRequestError for a text so long that encoding it would only cost time."""
    if len(text) > _MAX_CHARS_PER_TOKEN * max_model_len:
        raise BadRequestError(
            f"The prompt has {len(text)} characters and the context holds {max_model_len} tokens, "
            "answer included.",
            "prompt",
            code="context_length_exceeded",
        )


def _check_model(body: Mapping[str, Any], served_model: str) -> None:
    asked = body.get("model")
    if asked is not None and asked != served_model:
        raise BadRequestError(
            f"The model {shown(asked)} is not served here; this server has {served_model!r}.",
            "model",
            status=404,
            code="model_not_found",
        )


def _sampling(
    body: Mapping[str, Any], max_tokens: int, json_schema: str | None, *, chat: bool
) -> SamplingParams:
    top_k = read_integer(body, "top_k", -1, 1 << 31)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=read_number(body, "temperature", 1.0, low=0.0, high=2.0),
        top_p=read_number(body, "top_p", 1.0, low=0.0, high=1.0, above_low=True),
        top_k=max(top_k or 0, 0),
        min_p=read_number(body, "min_p", 0.0, low=0.0, high=1.0),
        repetition_penalty=read_number(
            body, "repetition_penalty", 1.0, low=0.0, high=_MAX_REPETITION_PENALTY, above_low=True
        ),
        presence_penalty=read_number(body, "presence_penalty", 0.0, low=-2.0, high=2.0),
        frequency_penalty=read_number(body, "frequency_penalty", 0.0, low=-2.0, high=2.0),
        logit_bias=read_biases(body, "logit_bias", limit=_MAX_BIAS, most=_MAX_BIASES),
        min_tokens=read_integer(body, "min_tokens", 0, 1 << 31) or 0,
        stop_token_ids=read_token_ids(body, "stop_token_ids", _MAX_STOP_TOKEN_IDS),
        logprobs=_chat_logprobs(body) if chat else read_integer(body, "logprobs", 0, _MAX_LOGPROBS),
        json_schema=json_schema,
        seed=read_integer(body, "seed", -(1 << 63), (1 << 63) - 1),
        stop=read_strings(body, "stop", _MAX_STOP_STRINGS),
        ignore_eos=read_flag(body, "ignore_eos"),
    )


def _chat_logprobs(body: Mapping[str, Any]) -> int | None:
    asked = read_flag(body, "logprobs")
    others = read_integer(body, "top_logprobs", 0, _MAX_LOGPROBS)
    if others and not asked:
        raise BadRequestError("top_logprobs needs logprobs = true.", "top_logprobs")
    return others or 0 if asked else None


def _choices(body: Mapping[str, Any], limit: int) -> int:
    count = read_integer(body, "n", 1, limit) or 1
    if read_integer(body, "best_of", 1, limit) not in (None, count):
        raise BadRequestError(
            f"best_of must equal n, here {count}: this engine answers with every sequence it makes.",
            "best_of",
        )
    return count


def _stream_options(body: Mapping[str, Any], *, stream: bool) -> Mapping[str, Any]:
    options = body.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not stream:
        raise BadRequestError("stream_options must be an object, and needs stream = true.", "stream_options")
    return options


def _speculation(value: Any, default: SpeculationParams) -> SpeculationParams:
    if value is None:
        return default
    if value == "off":
        return msgspec.structs.replace(default, method="off")
    if not isinstance(value, Mapping) or set(value) - {"method", "num_spec_tokens", "policy", "stop_below"}:
        raise BadRequestError(
            'speculation must be "off" or {"method": METHOD, "num_spec_tokens": k, "policy": POLICY, '
            '"stop_below": p}.',
            "speculation",
        )
    stated = {key: inner for key, inner in value.items() if inner is not None}
    count = read_integer(stated, "num_spec_tokens", 1, MAX_SPEC_TOKENS, "speculation.")
    return SpeculationParams(
        method=_one_of(_METHODS, stated.get("method", default.method), "speculation.method"),
        num_spec_tokens=count or default.num_spec_tokens,
        policy=_one_of(_POLICIES, stated.get("policy", default.policy), "speculation.policy"),
        stop_below=read_number(
            stated, "stop_below", default.stop_below, low=0.0, high=1.0, prefix="speculation."
        ),
    )


def _one_of(known: Sequence[T], value: Any, field: str) -> T:
    for one in known:
        if value == one:
            return one
    raise BadRequestError(f"{field} must be one of {', '.join(map(str, known))}, not {shown(value)}.", field)
