"""Judging an answer against the checks of its item.

Pure. A check that cannot be evaluated gives `passed=None` with the reason, never a pass. Limits: `regex`
looks at the first `REGEX_MAX_CHARS` characters, and the reader refuses patterns in which a repeat encloses a
repeat, because Python's matcher has no time limit; several `.*` in one pattern still cost polynomial time on
a long answer, and patterns inside a JSON schema are not bounded. `numeric` reads digits (Latin, Arabic-Indic,
Persian, full-width), not number words.
"""

import re

import jsonschema
import msgspec
from referencing.exceptions import Unresolvable

from draftproof.workload.answers import find_json, find_numbers
from draftproof.workload.items import (
    Check,
    ContainsCheck,
    ExactCheck,
    Item,
    JsonSchemaCheck,
    LengthCheck,
    NumericCheck,
    RegexCheck,
)

REGEX_MAX_CHARS = 4096
REGEX_FLAGS = re.DOTALL | re.MULTILINE


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one check; `passed` is None where it could not be evaluated, and `detail` says why."""

    kind: str
    passed: bool | None
    critical: bool
    detail: str


def evaluate_checks(item: Item, text: str) -> tuple[CheckResult, ...]:
    """Judge an answer; one result per check of the item, in the item's order."""
    return tuple(evaluate_check(check, text) for check in item.checks)


def evaluate_check(check: Check, text: str) -> CheckResult:
    """Judge an answer against one check."""
    passed, detail = _judge(check, text)
    return CheckResult(
        kind=str(check.__struct_config__.tag), passed=passed, critical=check.critical, detail=detail
    )


def _judge(check: Check, text: str) -> tuple[bool | None, str]:
    match check:
        case ExactCheck():
            return _judge_exact(check, text)
        case ContainsCheck():
            return _judge_contains(check, text)
        case NumericCheck():
            return _judge_numeric(check, text)
        case RegexCheck():
            return _judge_regex(check, text)
        case JsonSchemaCheck():
            return _judge_json(check, text)
        case LengthCheck():
            return _judge_length(check, text)


def _fold(text: str, *, ignore_case: bool) -> str:
    return text.casefold() if ignore_case else text


def _judge_exact(check: ExactCheck, text: str) -> tuple[bool, str]:
    wanted = _fold(check.value.strip(), ignore_case=check.ignore_case)
    same = _fold(text.strip(), ignore_case=check.ignore_case) == wanted
    return same, "equal" if same else f"not equal to {check.value.strip()!r}"


def _judge_contains(check: ContainsCheck, text: str) -> tuple[bool, str]:
    folded = _fold(text, ignore_case=check.ignore_case)

    def held(values: tuple[str, ...]) -> list[str]:
        return [value for value in values if _fold(value, ignore_case=check.ignore_case) in folded]

    missing = [value for value in check.all_of if value not in held(check.all_of)]
    if missing:
        return False, f"missing: {', '.join(missing)}"
    if check.any_of and not held(check.any_of):
        return False, f"none of: {', '.join(check.any_of)}"
    if held(check.none_of):
        return False, f"must not occur: {', '.join(held(check.none_of))}"
    return True, "contained"


def _judge_numeric(check: NumericCheck, text: str) -> tuple[bool, str]:
    numbers = find_numbers(text)
    if not numbers:
        return False, "no number in the answer"
    number = numbers[0] if check.pick == "first" else numbers[-1]
    passed = abs(number - check.value) <= check.tolerance
    return passed, f"{check.pick} number is {number:g}, wanted {check.value:g} ± {check.tolerance:g}"


def _judge_regex(check: RegexCheck, text: str) -> tuple[bool | None, str]:
    try:
        matched = re.search(check.pattern, text[:REGEX_MAX_CHARS], REGEX_FLAGS)
    except re.error as error:
        return None, f"the pattern is not valid: {error}"
    if matched:
        return True, f"matched {matched.group(0)[:60]!r}"
    if len(text) > REGEX_MAX_CHARS:
        return None, f"no match in the first {REGEX_MAX_CHARS} characters, the rest is not searched"
    return False, "no match"


def _judge_json(check: JsonSchemaCheck, text: str) -> tuple[bool | None, str]:
    found = find_json(text, "[" if check.schema.get("type") == "array" else "{")
    if found is None:
        return False, "no JSON value in the answer"
    validator = jsonschema.validators.validator_for(check.schema, jsonschema.Draft202012Validator)(
        check.schema
    )
    try:
        fault = jsonschema.exceptions.best_match(validator.iter_errors(found.value))
    except (Unresolvable, re.error, RecursionError, ArithmeticError) as error:
        return None, f"the schema cannot be applied: {type(error).__name__}"
    if fault is None:
        return True, "valid"
    return False, f"{fault.json_path}: {fault.message[:120]}"


def _judge_length(check: LengthCheck, text: str) -> tuple[bool, str]:
    chars = len(text.strip())
    limit = "any" if check.max_chars is None else str(check.max_chars)
    passed = chars >= check.min_chars and (check.max_chars is None or chars <= check.max_chars)
    return passed, f"{chars} characters, wanted {check.min_chars} to {limit}"
