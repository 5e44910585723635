"""Reads the bodies of OpenAI-form requests: known fields checked one by one, unknown fields ignored.

Pure. A value that this engine cannot honour is refused by name; it is never silently dropped.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from draftproof.reference.types import SamplingParams, SpeculationParams

MAX_SPEC_TOKENS = 64
_MAX_STOP_STRINGS = 16
_MAX_CHARS_PER_TOKEN = 64  # no text of more than so many a token fits; a longer one is not worth encoding

# Fields that would change the answer and that this engine does not implement, with their neutral values.
_NOT_IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "min_p": (None, 0, 0.0),
    "min_tokens": (None, 0),
    "logit_bias": (None, {}),
    "stop_token_ids": (None, []),
    "echo": (None, False),
    "suffix": (None, ""),
}


class BadRequestError(Exception):
    """A request that gets an OpenAI error body instead of an answer.

    Args:
        message: one clear sentence.
        param: the field at fault, or None.
        status: HTTP status.
        code: OpenAI's machine-readable code, or None.
    """

    def __init__(
        self, message: str, param: str | None, *, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    def body(self) -> dict[str, Any]:
        """Return the error body of the OpenAI form."""
        return error_body(self.message, self.status, param=self.param, code=self.code)


def error_body(
    message: str, status: int, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return an OpenAI error body; `type` follows from the status."""
    kinds = {404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for besides its prompt. `max_tokens` None means up to the context's end."""

    max_tokens: int | None
    sampling: SamplingParams
    speculation: SpeculationParams
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    return_round_metrics: bool


def parse_wanted(body: Mapping[str, Any], default: SpeculationParams, served_model: str) -> Wanted:
    """Return the checked fields that chat and plain completions share.

    Raises:
        BadRequestError: names the first field at fault.
    """
    _check_model(body, served_model)
    _refuse_not_implemented(body)
    stream = _flag(body, "stream")
    options = _stream_options(body, stream=stream)
    max_tokens = _max_tokens(body)
    return Wanted(
        max_tokens=max_tokens,
        sampling=_sampling(body, max_tokens or 1),
        speculation=_speculation(body.get("speculation"), default),
        stream=stream,
        include_usage=_flag(options, "include_usage", "stream_options.")
        or _flag(options, "continuous_usage_stats", "stream_options."),
        continuous_usage=_flag(options, "continuous_usage_stats", "stream_options."),
        return_token_ids=_flag(body, "return_token_ids"),
        return_round_metrics=_flag(body, "return_round_metrics"),
    )


def limit_tokens(wanted: Wanted, prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """Return the sampling with its token limit set, given what the prompt leaves of the context.

    Raises:
        BadRequestError: prompt and answer do not fit the context.
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
    return msgspec.structs.replace(wanted.sampling, max_tokens=wanted.max_tokens or room)


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
            f"The model {asked!r} is not served here; this server has {served_model!r}.",
            "model",
            status=404,
            code="model_not_found",
        )


def _refuse_not_implemented(body: Mapping[str, Any]) -> None:
    for field, neutral in _NOT_IMPLEMENTED.items():
        if field in body and not any(_same(body[field], value) for value in neutral):
            raise BadRequestError(
                f"{field} = {body[field]!r} is not implemented by this engine; leave it out.",
                field,
                code="unsupported_parameter",
            )
    kind = body.get("response_format")
    if kind is not None and (not isinstance(kind, Mapping) or kind.get("type") != "text"):
        raise BadRequestError(
            "response_format other than text is not implemented by this engine: decoding is not constrained.",
            "response_format",
            code="unsupported_parameter",
        )


def _same(value: Any, neutral: Any) -> bool:
    """Compare without taking True for 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _sampling(body: Mapping[str, Any], max_tokens: int) -> SamplingParams:
    top_k = _integer(body, "top_k", -1, 1 << 31)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_number(body, "temperature", 1.0, low=0.0, high=2.0),
        top_p=_number(body, "top_p", 1.0, low=0.0, high=1.0, above_low=True),
        top_k=max(top_k or 0, 0),
        seed=_integer(body, "seed", -(1 << 63), (1 << 63) - 1),
        stop=_stop(body.get("stop")),
        ignore_eos=_flag(body, "ignore_eos"),
    )


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    newer = _integer(body, "max_completion_tokens", 1, 1 << 31)
    return newer if newer is not None else _integer(body, "max_tokens", 1, 1 << 31)


def _stop(value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if strings is None:
        return ()
    if (
        not isinstance(strings, list)
        or len(strings) > _MAX_STOP_STRINGS
        or not all(isinstance(s, str) and s for s in strings)
    ):
        raise BadRequestError(
            f"stop must be a non-empty string or a list of at most {_MAX_STOP_STRINGS} of them.", "stop"
        )
    return tuple(strings)


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
        return SpeculationParams(method="off", num_spec_tokens=default.num_spec_tokens)
    if not isinstance(value, Mapping) or set(value) - {"method", "num_spec_tokens"}:
        raise BadRequestError(
            'speculation must be "off" or {"method": "ngram", "num_spec_tokens": k}.', "speculation"
        )
    count = _integer(value, "num_spec_tokens", 1, MAX_SPEC_TOKENS, "speculation.")
    return SpeculationParams(
        method=_method(value.get("method", default.method)), num_spec_tokens=count or default.num_spec_tokens
    )


def _method(value: Any) -> Literal["off", "ngram"]:
    if value == "off":
        return "off"
    if value == "ngram":
        return "ngram"
    raise BadRequestError(
        f'speculation.method must be "off" or "ngram", not {value!r}.', "speculation.method"
    )


def _flag(body: Mapping[str, Any], field: str, prefix: str = "") -> bool:
    value = body.get(field)
    if value is not None and not isinstance(value, bool):
        raise BadRequestError(f"{prefix}{field} must be true or false, not {value!r}.", prefix + field)
    return bool(value)


def _integer(body: Mapping[str, Any], field: str, low: int, high: int, prefix: str = "") -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequestError(
            f"{prefix}{field} must be a whole number from {low} to {high}, not {value!r}.", prefix + field
        )
    return value


def _number(
    body: Mapping[str, Any], field: str, default: float, *, low: float, high: float, above_low: bool = False
) -> float:
    value = body.get(field)
    if value is None:
        return default
    fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not fits or (above_low and value == low):
        bounds = f"above {low:g} and at most {high:g}" if above_low else f"from {low:g} to {high:g}"
        raise BadRequestError(f"{field} must be a number {bounds}, not {value!r}.", field)
    return float(value)
