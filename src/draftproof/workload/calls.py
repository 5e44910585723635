"""From what a log has of a chat call to the request that was sent: chat bodies, wrappers, LiteLLM's payload.

Pure, and tolerant where a workload file is strict: what cannot be sent is a reason, told apart by kind and
never by what a line says. Of an answer nothing is kept but how it ended and its tokens. Field names are those
of LiteLLM's `StandardLoggingPayload` and spend logs (`litellm/types/utils.py`), of OpenAI's batch files, and
of Langfuse's observations and Helicone's exports, as far as these have the same shape. Spans of OpenTelemetry
have a module of their own (`spans.py`).
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from draftproof.core.errors import WorkloadError
from draftproof.core.secrets import is_secret_name
from draftproof.workload.formats import (
    ANSWER_LEFT_OUT,
    OUR_KEYS,
    PROTOCOL_KEYS,
    explain_unmeasurable,
    without_nulls,
)
from draftproof.workload.moments import Moment, Unit, read_moment

CHAT, BATCH, SHAREGPT = "OpenAI chat requests", "OpenAI batch lines", "ShareGPT conversations"
WRAPPED, LITELLM = "requests with their responses", "LiteLLM's logging payload"
TIME_UNREAD = "the time cannot be read"
Fields = dict[str, Any]

# Where a wrapper has the request, the answer and the time.
_REQUESTS = ("request", "request_body", "requestBody", "body", "proxy_server_request", "kwargs", "input")
_RESPONSES = ("response", "response_body", "responseBody", "output")
_PARAMETERS = ("model_parameters", "modelParameters")
_TIMES = ("at_s", "timestamp", "startTime", "start_time", "created_at", "request_created_at", "createdAt")
# What is read of a line beside its request.
_READ_BESIDE = frozenset(
    (
        *(*_TIMES, *_RESPONSES, "due_ns", "id", "class", "tags", "request_tags", "usage", "usageDetails"),
        *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "finish_reason"),
        *("status", "status_code", "response_status", "statusCode", "level", "error", "error_str"),
    )
)
_DEEPEST = 3
# `input` beside one of these is that of OpenAI's Responses API.
_RESPONSES_API = frozenset({"instructions", "max_output_tokens", "previous_response_id", "truncation"})
# What an SDK is told beside the body of its request, and what names one request and no other.
_BESIDE_BODY = frozenset(
    (
        *("timeout", "extra_headers", "extra_query", "headers", "api_base", "base_url", "http_client"),
        *("custom_llm_provider", "num_retries", "max_retries", "request_id", "session_id"),
    )
)
# SDKs write an empty prompt beside messages, and vLLM takes a top_k of -1 for none.
_SAYING_NOTHING: tuple[tuple[str, object], ...] = (
    ("prompt", ""),
    ("prompt", []),
    ("input", ""),
    ("input", []),
    ("top_k", -1),
)
_CHAT_CALLS = frozenset({"completion", "acompletion"})
_NOT_WHOLE = "the log has the messages redacted or cut short"
_CUT_MARKS = ("redacted-by-litellm", "truncated by litellm", "litellm_truncated")
_MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
# Parts of messages that providers know, so that a reason may name them.
_PARTS = frozenset(
    (
        *(
            "image_url",
            "input_image",
            "image",
            "input_audio",
            "audio",
            "file",
            "input_file",
            "document",
            "video_url",
        ),
        *("tool_use", "tool_result", "refusal", "thinking", "blob", "uri", "file_data"),
    )
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.]{0,39}")
_WORD = re.compile(r"[a-z_]{1,40}")
_LONGEST_LABEL = 40


class UnsendableError(ValueError):
    """A line that cannot be sent; its text is the reason, without a word of the line."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a log says of an answer: why it ended, and the tokens of both sides; None: not recorded."""

    finish_reason: str | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a log: the fields of its request, when it came, what became of it and how it was labelled.

    `request` is a chat request, or a whole line in ShareGPT's form. `remarks`: what is not sent as it stands.
    """

    form: str
    request: Fields
    moment: Moment | None = None
    facts: Facts = Facts()
    labels: dict[str, str] = {}
    remarks: tuple[str, ...] = ()


def read_call(value: object, unit: Unit | None = None) -> Call:
    """Return the call that a decoded line states. Raises UnsendableError: it is none, or cannot be sent.

    `unit`: of a time that is a bare number.
    """
    if not isinstance(value, dict):
        raise UnsendableError("not a JSON object")
    line = without_nulls(_unwrap_payload(value))
    form, request, outer = _find_request(line)
    if _is_failed(outer, line):
        raise UnsendableError("a call that failed")
    moment, unread = _read_time(outer, unit)
    facts = read_facts(outer)
    if form == SHAREGPT:
        kept = {key: part for key, part in request.items() if key not in (*_TIMES, "class")}
        return Call(form=form, request=kept, moment=moment, facts=facts, remarks=unread)
    body, remarks = clean_request(request, is_bare=form == CHAT)
    return Call(
        form=form,
        request=body,
        moment=moment,
        facts=facts,
        labels=_read_labels(outer, request),
        remarks=(*remarks, *unread),
    )


def _unwrap_payload(value: Fields) -> Fields:
    """Return LiteLLM's payload of a line that has it among the arguments of a callback."""
    for holder in (value, value.get("kwargs")):
        if isinstance(holder, dict) and isinstance(holder.get("standard_logging_object"), dict):
            found: Fields = holder["standard_logging_object"]
            return found
    return value


def _find_request(line: Fields) -> tuple[str, Fields, Fields]:
    """Return the form of a line, the request in it, and the fields around that."""
    if "conversations" in line:
        return SHAREGPT, line, line
    if "call_type" in line:
        return LITELLM, _read_litellm(line), line
    if "custom_id" in line or ("url" in line and "body" in line):
        return BATCH, _read_batch(line), line
    if isinstance(line.get("messages"), list):
        return CHAT, line, line
    found = _find_body(line, 0)
    if found is None:
        raise UnsendableError(_explain_no_messages(line))
    parameters: Fields = next((line[key] for key in _PARAMETERS if isinstance(line.get(key), dict)), {})
    return WRAPPED, parameters | found, line


def _read_litellm(line: Fields) -> Fields:
    kind = str(line["call_type"])
    if kind not in _CHAT_CALLS:
        shown = kind if _WORD.fullmatch(kind) else "unnamed"
        raise UnsendableError(f"a call of another kind than chat ({shown})")
    messages = decode_text(line.get("messages"))
    if isinstance(messages, list) and messages:
        parameters = line.get("model_parameters")
        return (parameters if isinstance(parameters, dict) else {}) | {"messages": messages}
    sent = decode_text(line.get("proxy_server_request"))
    if isinstance(sent, dict) and "litellm_truncated" in sent:
        raise UnsendableError(_NOT_WHOLE)
    found = _find_body(sent, 0)
    if found is None:
        raise UnsendableError(
            "a text prompt, not chat messages" if isinstance(messages, str) else "no messages"
        )
    return found


def _read_batch(line: Fields) -> Fields:
    body = decode_text(line.get("body"))
    if str(line.get("url", "/chat/completions")).endswith("/chat/completions") and isinstance(body, dict):
        return body
    raise UnsendableError("a batch line of another endpoint than chat")


def _find_body(value: object, depth: int) -> Fields | None:
    """Return the chat body that a wrapper holds: an object with messages, or a list of these."""
    value = decode_text(value)
    if isinstance(value, list):
        is_chat = bool(value) and all(isinstance(one, dict) and "role" in one for one in value)
        return {"messages": value} if is_chat else None
    if not isinstance(value, dict) or depth > _DEEPEST:
        return None
    if isinstance(value.get("messages"), list):
        return value
    inner = (
        key for key in _REQUESTS if key in value and not (key == "input" and value.keys() & _RESPONSES_API)
    )
    return next((found for key in inner if (found := _find_body(value[key], depth + 1))), None)


def decode_text(value: object) -> Any:
    """Return what a text that is a JSON object or list says; other values stay."""
    if not isinstance(value, str) or value.lstrip()[:1] not in {"{", "["}:
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _explain_no_messages(line: Fields) -> str:
    within: list[Mapping[str, Any]] = [line]
    within += [part for key in _REQUESTS if isinstance(part := decode_text(line.get(key)), dict)]
    if any("prompt" in one for one in within):
        return "a text prompt, not chat messages"
    if any("input" in one for one in within):
        return "`input` instead of messages: an embeddings call, or one of the Responses API"
    return "no messages"


def _is_failed(outer: Fields, line: Fields) -> bool:
    response = _find_response(line)
    stated = [outer.get(key) for key in ("status_code", "response_status", "statusCode")]
    codes = [code for code in (*stated, response.get("status_code")) if isinstance(code, int)]
    told = outer.get("status") in ("failure", "error") or outer.get("level") == "ERROR"
    said = any(outer.get(key) for key in ("error_str", "error")) or bool(response.get("error"))
    return told or said or any(code >= 400 for code in codes)


def _find_response(line: Fields) -> Fields:
    """Return the answer that a line has, as its service gave it; {} for none."""
    for key in _RESPONSES:
        found = decode_text(line.get(key))
        if isinstance(found, dict):
            body = decode_text(found.get("body"))
            return found | body if isinstance(body, dict) else found
    return {}


def read_facts(line: Fields) -> Facts:
    """Return what a line says of the answer to its request."""
    response = _find_response(line)
    usage = [
        part
        for holder in (line, response)
        for part in (holder.get("usage"), holder.get("usageDetails"), holder)
        if isinstance(part, dict)
    ]
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    finish = first.get("finish_reason", line.get("finish_reason"))
    return Facts(
        finish_reason=finish if isinstance(finish, str) and _WORD.fullmatch(finish) else None,
        output_tokens=_find_count(usage, ("completion_tokens", "output_tokens", "output")),
        prompt_tokens=_find_count(usage, ("prompt_tokens", "input_tokens", "input")),
    )


def _find_count(holders: list[Fields], names: tuple[str, ...]) -> int | None:
    return next(
        (count for one in holders for name in names if (count := as_count(one.get(name))) is not None), None
    )


def as_count(value: object) -> int | None:
    """Return a number of tokens; None: it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _read_time(line: Fields, unit: Unit | None) -> tuple[Moment | None, tuple[str, ...]]:
    if isinstance(due_ns := line.get("due_ns"), int):
        return Moment(due_ns, "at_s"), ()
    for key in _TIMES:
        if key in line:
            row = {"at_s" if key == "at_s" else "timestamp": line[key]}
            try:
                return read_moment(row, unit), ()
            except (WorkloadError, ValueError, TypeError, OverflowError):
                return None, (TIME_UNREAD,)
    return None, ()


def _read_labels(outer: Fields, request: Fields) -> dict[str, str]:
    """Return the labels that a log may have: a tag, metadata, the class of traffic, the asked model."""
    metadata = outer.get("metadata")
    holders = [metadata, request.get("metadata")]
    if isinstance(metadata, dict):
        holders += [decode_text(metadata.get(key)) for key in ("requester_metadata", "spend_logs_metadata")]
    labels = {
        key: part
        for holder in holders
        if isinstance(holder, dict)
        for key, part in holder.items()
        if isinstance(part, str) and not key.startswith("user_api_key")
    }
    tags = decode_text(outer.get("request_tags", outer.get("tags")))
    named = (
        [one for one in tags if isinstance(one, str) and not one.startswith("User-Agent")]
        if isinstance(tags, list)
        else []
    )
    if named:
        labels["tag"] = named[0]
    labels |= {key: outer[key] for key in ("class",) if isinstance(outer.get(key), str)}
    model = outer.get("model_group", request.get("model", outer.get("model")))
    labels |= {"model": model} if isinstance(model, str) else {}
    return {
        key: part
        for key, part in labels.items()
        if 0 < len(part) <= _LONGEST_LABEL and _PLAIN_NAME.fullmatch(key)
    }


def clean_request(request: Fields, *, is_bare: bool = False) -> tuple[Fields, tuple[str, ...]]:
    """Return a chat request without what no service is sent, and a remark for each kind of that.

    `is_bare`: fields of the log stand beside those of the request, so only known ones are the request's.
    Raises UnsendableError: it cannot be sent.
    """
    body = without_nulls(request)
    if "system" in body or "anthropic_version" in body:
        raise UnsendableError("a request of Anthropic's Messages API (`system` beside messages)")
    extra = body.pop("extra_body", None)
    body |= extra if isinstance(extra, dict) else {}
    body = {key: part for key, part in body.items() if (key, part) not in _SAYING_NOTHING}
    remarks = list[str]()
    for key in tuple(body):
        if is_bare and key in _READ_BESIDE:
            del body[key]
        elif why := _explain_left_out(key, is_bare=is_bare):
            del body[key]
            remarks.append(why)
    for name, value in body.items():
        if (why := explain_unmeasurable(name, value)) is not None:
            raise UnsendableError(f"`{name}`: {why}")
    messages, more = _clean_messages(body.get("messages"))
    return body | {"messages": messages}, tuple(dict.fromkeys([*remarks, *more]))


def _explain_left_out(key: str, *, is_bare: bool) -> str | None:
    if is_secret_name(key):
        return "a field with the name of a secret is left out"
    if "speculat" in key:
        return "a field of speculative decoding is left out: the arms of the plan decide it"
    if key in _BESIDE_BODY or (is_bare and key not in _known_fields()):
        shown = f"`{key}`" if _PLAIN_NAME.fullmatch(key) else "a field of the log"
        return f"{shown} is not used"
    return None


@lru_cache(maxsize=1)
def _known_fields() -> frozenset[str]:
    from draftproof.services.engines import ADAPTERS  # noqa: PLC0415 - they import this package's items

    known = frozenset().union(*(adapter.facts.request_fields for adapter in ADAPTERS.values()))
    return known | PROTOCOL_KEYS | OUR_KEYS


def _clean_messages(messages: object) -> tuple[list[Fields], list[str]]:
    """Return the messages up to the last one that asks something."""
    if not isinstance(messages, list) or not messages:
        raise UnsendableError("no messages")
    remarks: dict[str, None] = {}
    kept = [_clean_message(one, remarks) for one in messages]
    while kept and kept[-1]["role"] == "assistant":
        kept.pop()
        remarks[ANSWER_LEFT_OUT] = None
    if not kept:
        raise UnsendableError("only the assistant speaks")
    last = kept[-1]
    if last["role"] not in {"tool", "function"} and not _has_text(last.get("content")):
        raise UnsendableError("the last message is empty")
    return kept, list(remarks)


def _has_text(content: object) -> bool:
    parts = content if isinstance(content, list) else [{"text": content}]
    return any(str(part.get("text") or "").strip() for part in parts)


def _clean_message(message: object, remarks: dict[str, None]) -> Fields:
    if not isinstance(message, dict):
        raise UnsendableError("a message that is no object")
    stated = {key: part for key, part in without_nulls(message).items() if part != [] or key == "content"}
    if str(stated.get("role")) not in _ROLES:
        raise UnsendableError("a message of an unknown role")
    for key in stated.keys() - _MESSAGE_KEYS:
        shown = f"`{key}` of a message" if _PLAIN_NAME.fullmatch(key) else "a field of a message"
        remarks[f"{shown} is not used"] = None
    cleaned = {key: part for key, part in stated.items() if key in _MESSAGE_KEYS}
    if "content" in cleaned:
        cleaned["content"] = _clean_content(cleaned["content"])
    elif not (cleaned["role"] == "assistant" and cleaned.get("tool_calls")):
        raise UnsendableError("a message without content")
    if "tool_calls" in cleaned:
        cleaned["tool_calls"] = _clean_tool_calls(cleaned["tool_calls"])
    return cleaned


def _clean_content(content: object) -> str | list[Fields]:
    if isinstance(content, str):
        _refuse_cut(content)
        return content
    if not isinstance(content, list):
        raise UnsendableError("a message whose content is neither text nor parts")
    return [_clean_part(one) for one in content]


def _clean_part(part: object) -> Fields:
    text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
    kind = part.get("type", "text") if isinstance(part, dict) else "text"
    if kind != "text" or not isinstance(text, str):
        shown = f" (`{kind}`)" if isinstance(kind, str) and kind in _PARTS else ""
        raise UnsendableError(f"a part of a message that is no text{shown}")
    _refuse_cut(text)
    return {"type": "text", "text": text}


def _refuse_cut(text: str) -> None:
    if any(mark in text for mark in _CUT_MARKS):
        raise UnsendableError(_NOT_WHOLE)


def _clean_tool_calls(calls: object) -> list[Fields]:
    """Return calls whose arguments are text, as the protocol has them."""
    return list(_write_arguments(calls))


def _write_arguments(calls: object) -> Iterator[Fields]:
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise UnsendableError("a tool call that names no function")
        arguments = function.get("arguments", "{}")
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        yield {"type": "function"} | call | {"function": function | {"arguments": text}}


def explain_text_line(text: str) -> str:
    """Return why a line that is no JSON cannot be sent: vLLM's request log is told by its words.

    With `--enable-log-requests` vLLM writes `Received request ID: prompt: '…', params: …`, newer versions the
    prompt at level DEBUG alone, as `Request ID details: prompt: …` (`vllm/entrypoints/logger.py`). The prompt
    is what the chat template made of the messages, cut at `--max-log-len`.
    """
    if _VLLM_PROMPT.search(text):
        return VLLM_PROMPTS
    return VLLM_LINES if _VLLM_LINE.search(text) else "not JSON"


VLLM_PROMPTS = "vLLM's request log: the prompt is text behind the chat template, and chat messages are sent"
VLLM_LINES = "vLLM's request log: a line without a prompt"
_VLLM_PROMPT = re.compile(r"\b(?:Received request \S{1,200}: |Request \S{1,200} details: )prompt: (?!None)")
_VLLM_LINE = re.compile(
    r"\bReceived request \S{1,200}: |\bRequest \S{1,200} details: |\bGenerated response \S{1,200}"
)
