"""What makes an item unusable before anything is asked: faults of limits, sampling, patterns and schemas.

Pure. A fault is one sentence that names the key; the reader adds file and line.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from draftproof.workload.checks import REGEX_FLAGS
from draftproof.workload.formats import find_request_faults
from draftproof.workload.items import (
    Check,
    ContainsCheck,
    FinishReasonCheck,
    FollowUp,
    Item,
    JsonSchemaCheck,
    JudgeCheck,
    LengthCheck,
    Message,
    NumericCheck,
    PythonCheck,
    RegexCheck,
    ToolCallCheck,
)

_FUNCTION = re.compile(r"[^:]+:[A-Za-z_]\w*")
_PLACEHOLDERS = re.compile(r"\{([^{}]*)\}")
_KNOWN_PLACEHOLDERS = frozenset({"question", "answer", "rubric", "words"})
_LONGEST_CHECK_S = 600.0
_REPEAT = re.compile(r"[*+]|\{\d*,\}")


def find_faults(item: Item) -> Iterator[str]:
    """Yield the faults of an item, none if it can be used."""
    if not item.id.strip():
        yield "id is empty"
    yield from _find_faults_of_messages(item.messages)
    if item.max_tokens < 1:
        yield f"max_tokens must be 1 or more, got {item.max_tokens}"
    if item.due_ns is not None and item.due_ns < 0:
        yield f"due_ns must be 0 or more, got {item.due_ns}"
    yield from _find_sampling_faults(item)
    yield from _find_faults_of_checks(item.checks, "checks")
    for index, follow_up in enumerate(item.follow_ups):
        yield from _find_follow_up_faults(follow_up, f"follow_ups[{index}]")
    yield from find_request_faults(item.request)
    if item.response_schema is not None:
        fault = _find_schema_fault(item.response_schema)
        if fault:
            yield f"response_schema: {fault}"


def _find_faults_of_messages(messages: Sequence[Message]) -> Iterator[str]:
    """A request ends with something to answer; only the assistant, when it calls tools, says nothing."""
    if not messages:
        yield "messages is empty"
        return
    for index, one in enumerate(messages):
        if one.content is None and not (one.role == "assistant" and one.tool_calls):
            yield f"messages[{index}] has no content, and only an assistant that calls tools says nothing"
    last = messages[-1]
    if last.role == "assistant":
        yield "the last message is the assistant's, so nothing is asked: end with the question"
    elif not last.text.strip() and last.role not in {"tool", "function"}:
        yield "the last message is empty"


def encloses_repeat(pattern: str) -> bool:
    """Tell whether an unbounded repeat encloses another, as in `(a+)+`, which can take exponential time."""
    # Escapes and character classes become one plain letter, so that only live brackets and repeats remain.
    plain = re.sub(r"\[\^?\]?(?:\\.|[^\]\\])*\]", "x", re.sub(r"\\[\[\]\\]", "x", pattern))
    plain = re.sub(r"\\.", "x", plain)
    starts: list[int] = []
    for index, char in enumerate(plain):
        if char == "(":
            starts.append(index)
        elif char == ")" and starts:
            body = plain[starts.pop() + 1 : index]
            if _REPEAT.search(body) and _REPEAT.match(plain, index + 1):
                return True
    return False


def _find_sampling_faults(item: Item) -> Iterator[str]:
    sampling = item.sampling
    if not 0 <= sampling.temperature < math.inf:
        yield f"sampling.temperature must be 0 or more, got {sampling.temperature:g}"
    if not 0 < sampling.top_p <= 1:
        yield f"sampling.top_p must be above 0 and at most 1, got {sampling.top_p:g}"
    if sampling.top_k < 0:
        yield f"sampling.top_k must be 0 (off) or more, got {sampling.top_k}"


def _find_faults_of_checks(checks: Iterable[Check], place: str) -> Iterator[str]:
    for index, check in enumerate(checks):
        fault = _find_check_fault(check)
        if fault:
            yield f"{place}[{index}]: {fault}"


def _find_follow_up_faults(follow_up: FollowUp, place: str) -> Iterator[str]:
    if not follow_up.content.strip() and not follow_up.tool_results:
        yield f"{place} needs content or tool_results"
    if follow_up.max_tokens is not None and follow_up.max_tokens < 1:
        yield f"{place}.max_tokens must be 1 or more, got {follow_up.max_tokens}"
    yield from _find_faults_of_checks(follow_up.checks, f"{place}.checks")


def _find_check_fault(check: Check) -> str | None:
    match check:
        case RegexCheck():
            return _find_pattern_fault(check.pattern)
        case JsonSchemaCheck():
            return _find_schema_fault(check.schema)
        case ContainsCheck() if not (check.all_of or check.any_of or check.none_of):
            return "contains needs all_of, any_of or none_of"
        case NumericCheck() if not (check.tolerance >= 0 and math.isfinite(check.value)):
            return (
                f"value must be finite and tolerance 0 or more, got {check.value:g} and {check.tolerance:g}"
            )
        case LengthCheck() if check.max_chars is not None and check.max_chars < check.min_chars:
            return f"max_chars {check.max_chars} is below min_chars {check.min_chars}"
        case _:
            return _find_call_fault(check)


def _find_call_fault(check: Check) -> str | None:
    match check:
        case ToolCallCheck():
            return _find_tool_call_fault(check)
        case FinishReasonCheck() if not check.any_of:
            return "finish_reason needs any_of"
        case PythonCheck():
            return _find_function_fault(check)
        case JudgeCheck():
            return _find_judge_fault(check)
        case _:
            return None


def _find_tool_call_fault(check: ToolCallCheck) -> str | None:
    if check.calls is not None and check.calls < 0:
        return f"calls must be 0 or more, got {check.calls}"
    if check.calls == 0 and (check.names or check.arguments is not None or check.schema is not None):
        return "calls = 0 wants no call, so names, arguments and schema have no meaning"
    return None if check.schema is None else _find_schema_fault(check.schema)


def _find_function_fault(check: PythonCheck) -> str | None:
    if not _FUNCTION.fullmatch(check.function):
        return f'function must be "file.py:name" or "module:name", got {check.function!r}'
    if not 0 < check.timeout_s <= _LONGEST_CHECK_S:
        return f"timeout_s must be above 0 and at most {_LONGEST_CHECK_S:g}, got {check.timeout_s:g}"
    return None


def _find_judge_fault(check: JudgeCheck) -> str | None:
    words = [word.strip().casefold() for word in check.verdicts]
    if len(words) < 2 or len(set(words)) < len(words) or not all(words):
        return "verdicts needs two different words at least"
    for word in words:
        if any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", other) for other in words if other != word):
            return f"the verdict {word!r} stands in another verdict too, so no reply could be told"
    if check.expected.strip().casefold() not in words:
        return f"expected {check.expected!r} is none of verdicts"
    named = set(_PLACEHOLDERS.findall(check.prompt))
    if check.prompt and "answer" not in named:
        return "prompt must hold {answer}"
    unknown = sorted(named - _KNOWN_PLACEHOLDERS)
    return (
        f"prompt holds {{{unknown[0]}}}, and only question, answer, rubric and words are known"
        if unknown
        else None
    )


def _find_pattern_fault(pattern: str) -> str | None:
    try:
        re.compile(pattern, REGEX_FLAGS)
    except re.error as error:
        return f"the pattern {pattern!r} is not a regular expression ({error})"
    if encloses_repeat(pattern):
        return f"the pattern {pattern!r} repeats a group that itself repeats, which may never end"
    return None


def _find_schema_fault(schema: dict[str, Any]) -> str | None:
    return _find_fault_of_encoded(msgspec.json.encode(schema))


@lru_cache(maxsize=1024)  # many items of a log have the same schema, and checking one takes milliseconds
def _find_fault_of_encoded(encoded: bytes) -> str | None:
    import jsonschema  # noqa: PLC0415 - its formats compile grammars for seconds, and most runs have no schema

    schema = msgspec.json.decode(encoded)
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        validator.check_schema(schema, format_checker=validator.FORMAT_CHECKER)
    except jsonschema.SchemaError as error:
        return f"the JSON schema is not valid at {error.json_path} ({error.message[:120]})"
    return next(_find_remote_references(schema), None)


def _find_remote_references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            yield f"the JSON schema refers to {reference!r}, and only references inside it (#...) are read"
        for value in node.values():
            yield from _find_remote_references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _find_remote_references(value)
