"""Judging what a program acts upon: tool calls and their arguments, and how an answer ended. Pure."""

from typing import Any

from draftproof.records import ToolCall
from draftproof.workload.answers import AnswerView, parse_json
from draftproof.workload.items import FinishReasonCheck, StopCheck, ToolCallCheck
from draftproof.workload.schemas import find_violation

_ENDED_ITSELF = ("stop", "tool_calls")
Judged = tuple[bool | None, str]


def judge_tool_calls(check: ToolCallCheck, answer: AnswerView) -> Judged:
    """Judge number, names and arguments of the calls; the first fault is the one that is told."""
    calls = answer.tool_calls
    names = ", ".join(call.name for call in calls) or "none"
    wanted = f"{check.calls} calls" if check.calls is not None else "a call"
    if (check.calls is None and not calls) or (check.calls is not None and len(calls) != check.calls):
        return False, f"wanted {wanted}, called: {names}"
    missing = [name for name in check.names if name not in {call.name for call in calls}]
    if missing:
        return False, f"not called: {', '.join(missing)}; called: {names}"
    for call in calls:
        if not check.names or call.name in check.names:
            passed, detail = _judge_arguments(check, call)
            if not passed:
                return passed, f"{call.name}: {detail}"
    return True, f"called: {names}"


def judge_finish_reason(check: FinishReasonCheck, answer: AnswerView) -> Judged:
    """Judge the reason that the service gave for the end of the answer."""
    if answer.finish_reason is None:
        return None, "the service gave no finish reason"
    return answer.finish_reason in check.any_of, f"ended by {answer.finish_reason}"


def judge_stop(check: StopCheck, answer: AnswerView, sent: tuple[str, ...]) -> Judged:
    """Judge that no stop string is in the answer and that it did not run into its length limit."""
    strings = check.strings or sent
    if not strings:
        return None, "the item sends no stop string"
    leaked = [string for string in strings if string in answer.text]
    if leaked:
        return False, f"in the answer: {', '.join(map(repr, leaked))}"
    if not check.ended:
        return True, "no stop string in the answer"
    if answer.finish_reason is None:
        return None, "the service gave no finish reason"
    return answer.finish_reason in _ENDED_ITSELF, f"ended by {answer.finish_reason}"


def _judge_arguments(check: ToolCallCheck, call: ToolCall) -> Judged:
    found = parse_json(call.arguments or "{}")
    if found is None or not isinstance(found.value, dict):
        return False, f"its arguments are no JSON object: {call.arguments[:60]!r}"
    if check.schema is not None:
        passed, detail = find_violation(found.value, check.schema)
        if not passed:
            return passed, detail
    return _compare(check, found.value)


def _compare(check: ToolCallCheck, given: dict[str, Any]) -> Judged:
    wanted = check.arguments
    if wanted is None:
        return True, "valid"
    if check.match == "exact" and set(given) != set(wanted):
        return False, f"its arguments are {', '.join(sorted(given)) or 'none'}"
    for key, value in wanted.items():
        if key not in given:
            return False, f"argument {key} is missing"
        if not is_equal(given[key], value):
            return False, f"argument {key} is {str(given[key])[:60]!r}"
    return True, "as wanted"


def is_equal(one: object, other: object) -> bool:
    """Tell whether two JSON values are the same; 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(is_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return one == other
