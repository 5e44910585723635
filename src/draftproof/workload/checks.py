"""Judging an answer against the checks of its item. Pure.

A check that cannot be evaluated gives `passed=None` with the reason, never a pass. `regex` looks at the first
`REGEX_MAX_CHARS` characters, for Python's matcher has no time limit; patterns inside a JSON schema are not
bounded. `numeric` reads digits (Latin, Arabic-Indic, Persian, full-width), not number words. What a function
or a judge model says is looked up among the judgements that the run has stored.

What functions and judge models are asked after a run, and what their words mean.

Pure: which answers are still to be judged and in which order, the prompt of a judge, the verdict in a reply.
A judge sees the question, the answer and the rubric; never the arm, the load or another answer.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from draftproof.core.records import Judgement, RequestRecord, ToolCall
from draftproof.workload.arm_orders import order_by_seed
from draftproof.workload.conversation import (
    AnswerView,
    checks_at_turn,
    find_json,
    find_numbers,
    parse_json,
    stop_at_turn,
    view_answer,
)
from draftproof.workload.items import (
    Check,
    ContainsCheck,
    ExactCheck,
    FinishReasonCheck,
    Item,
    JsonSchemaCheck,
    JudgeCheck,
    LengthCheck,
    Message,
    NumericCheck,
    PythonCheck,
    RegexCheck,
    StopCheck,
    TextCheck,
    ToolCallCheck,
    find_violation,
)

_ENDED_ITSELF = ("stop", "tool_calls")
Judged = tuple[bool | None, str]


def judge_tool_calls(check: ToolCallCheck, answer: AnswerView) -> Judged:
    """Judge number, names and arguments of the calls; the first fault is the one that is reported."""
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


REGEX_MAX_CHARS = 4096
REGEX_FLAGS = re.DOTALL | re.MULTILINE


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Outcome of one check; `passed` is None where it could not be evaluated, and `detail` says why."""

    kind: str
    passed: bool | None
    critical: bool
    detail: str


def evaluate_checks(
    item: Item,
    answer: AnswerView,
    turn: int = 0,
    judgements: Mapping[int, tuple[Judgement, ...]] | None = None,
) -> tuple[CheckResult, ...]:
    """Judge the answer to a turn of an item; one result per check of the turn, in its order.

    `turn`: the turn of the conversation, counted from 0. `judgements`: by index of the check, what functions
    and judge models said of this request.
    """
    known = judgements or {}
    return tuple(
        evaluate_check(check, answer, stop=stop_at_turn(item, turn), judgements=known.get(index, ()))
        for index, check in enumerate(checks_at_turn(item, turn))
    )


def evaluate_check(
    check: Check, answer: AnswerView, *, stop: tuple[str, ...] = (), judgements: tuple[Judgement, ...] = ()
) -> CheckResult:
    """Judge an answer against one check; `stop` are the stop strings that were sent."""
    passed, detail = _judge(check, answer, stop, judgements)
    return CheckResult(
        kind=str(check.__struct_config__.tag), passed=passed, critical=check.critical, detail=detail
    )


def read_judgements(judgements: tuple[Judgement, ...], answer: AnswerView) -> tuple[bool | None, str]:
    """Return what stored judgements of one check come to.

    Those of another answer do not count, nor of several by the same pass any but the first. Passes that
    differ tell nothing.
    """
    sha256 = answer.sha256
    of_this = {one.attempt: one for one in reversed(judgements) if one.answer_sha256 == sha256}
    if not of_this:
        return None, "judged for another answer" if judgements else "not judged"
    said = {one.passed for one in of_this.values()}
    first = of_this[min(of_this)]
    if len(said) > 1:
        return None, f"its {len(of_this)} passes do not agree"
    return first.passed, first.detail


def _judge(
    check: Check, answer: AnswerView, stop: tuple[str, ...], judgements: tuple[Judgement, ...]
) -> tuple[bool | None, str]:
    match check:
        case ToolCallCheck():
            return judge_tool_calls(check, answer)
        case FinishReasonCheck():
            return judge_finish_reason(check, answer)
        case StopCheck():
            return judge_stop(check, answer, stop)
        case PythonCheck() | JudgeCheck():
            return read_judgements(judgements, answer)
        case _:
            return _judge_text(check, answer.text)


def _judge_text(check: TextCheck, text: str) -> tuple[bool | None, str]:
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
    return find_violation(found.value, check.schema)


def _judge_length(check: LengthCheck, text: str) -> tuple[bool, str]:
    chars = len(text.strip())
    limit = "any" if check.max_chars is None else str(check.max_chars)
    passed = chars >= check.min_chars and (check.max_chars is None or chars <= check.max_chars)
    return passed, f"{chars} characters, wanted {check.min_chars} to {limit}"


JUDGE_PASSES = 2
# "not correct" does not say "correct"; markup and quotes may stand between.
_NEGATION = (
    r"\b(?:not|cannot|never|isn.t|can.t|don.t|doesn.t)\b[\s\W]*"
    r"(?:(?:a|the|be|say|it|is|quite|really|fully|entirely)\b[\s\W]*)*"
)
BUILTIN_PROMPT = """\
You judge an answer. Read the question, the answer and the rubric, then say your verdict in one word.

Question:
{question}

Answer:
{answer}

Rubric:
{rubric}

Answer with exactly one of these words and nothing else: {words}."""


class JudgingView(AnswerView, frozen=True, kw_only=True):
    """What a function of the user's gets: the answer, and which turn of which item it answers."""

    item_id: str = ""
    conversation_turn: int = 0
    messages: tuple[Message, ...] = ()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one answer that a function or a judge model has to look at."""

    request_id: str
    item: Item
    turn: int
    check_index: int
    check: PythonCheck | JudgeCheck
    answer: AnswerView
    attempt: int = 0

    @property
    def kind(self) -> Literal["python", "judge"]:
        """Who is asked."""
        return "python" if isinstance(self.check, PythonCheck) else "judge"

    @property
    def question(self) -> str:
        """What was asked up to this turn: all messages that no model wrote."""
        opening = [one.text for one in self.item.messages if one.role != "assistant"]
        return "\n\n".join([*opening, *(one.content for one in self.item.follow_ups[: self.turn])])

    @property
    def view(self) -> JudgingView:
        """The answer as a function sees it."""
        return JudgingView(
            **msgspec.structs.asdict(self.answer),
            item_id=self.item.id,
            conversation_turn=self.turn,
            messages=self.item.messages,
        )


def list_tasks(
    records: Iterable[RequestRecord],
    items: Iterable[Item],
    known: Iterable[Judgement],
    seed: int,
) -> tuple[Task, ...]:
    """Return what is still to be judged: answered and counted requests, passes one after the other.

    Inside a pass the order is drawn by the seed and the request's id, so that a judge that drifts meets the
    arms alike.
    """
    by_id = {item.id: item for item in items}
    done = {(one.request_id, one.check, one.attempt, one.answer_sha256) for one in known}
    tasks = [task for record in _distinct(records) for task in _tasks_of(record, by_id)]
    waiting = [
        one for one in tasks if (one.request_id, one.check_index, one.attempt, one.answer.sha256) not in done
    ]
    return tuple(
        task
        for attempt in range(JUDGE_PASSES)
        for task in _shuffle([one for one in waiting if one.attempt == attempt], seed, attempt)
    )


def render_prompt(task: Task, check: JudgeCheck) -> str:
    """Return the prompt of a judge; braces in question and answer are left as they are."""
    values = {
        "question": task.question,
        "answer": show_answer(task.answer),
        "rubric": check.rubric,
        "words": ", ".join(check.verdicts),
    }
    template = check.prompt or BUILTIN_PROMPT
    return re.sub(r"\{(question|answer|rubric|words)\}", lambda found: values[found[1]], template)


def show_answer(answer: AnswerView) -> str:
    """Return an answer as a judge reads it, its tool calls as one line each."""
    calls = [f"[calls {call.name} with {call.arguments}]" for call in answer.tool_calls]
    return "\n".join(filter(None, [answer.text.strip(), *calls])) or "(empty)"


def read_verdict(reply: str, check: JudgeCheck) -> tuple[bool | None, str]:
    """Return whether a reply passes the answer; None with no verdict word, several, or a negated one."""
    found = {word for word in check.verdicts if _find_word(word, reply)}
    said = " ".join(reply.split())[:120]
    if len(found) != 1 or any(_find_word(word, reply, _NEGATION) for word in found):
        return None, f"no single verdict word in: {said!r}"
    word = found.pop().strip()
    return word.casefold() == check.expected.strip().casefold(), f"said {word}"


def _find_word(word: str, reply: str, before: str = "") -> bool:
    return bool(re.search(rf"{before}(?<!\w){re.escape(word.strip())}(?!\w)", reply, re.IGNORECASE))


def hash_judge(model: str, check: JudgeCheck, request: Mapping[str, object]) -> str:
    """Return the hash of everything that makes a judge what it is."""
    parts = [model, check.prompt or BUILTIN_PROMPT, check.rubric, check.verdicts, check.expected, request]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def make_judgement(task: Task, judged: tuple[bool | None, str], *, by: str, source_sha256: str) -> Judgement:
    """Return the judgement of a task."""
    return Judgement(
        request_id=task.request_id,
        item_id=task.item.id,
        check=task.check_index,
        kind=task.kind,
        passed=judged[0],
        detail=judged[1],
        by=by,
        source_sha256=source_sha256,
        answer_sha256=task.answer.sha256,
        attempt=task.attempt,
    )


def _distinct(records: Iterable[RequestRecord]) -> Collection[RequestRecord]:
    """Keep of each request the record that the verdict keeps: the one that ended first."""
    kept: dict[str, RequestRecord] = {}
    for record in records:
        if record.phase == "measure":
            kept[record.request_id] = min(
                kept.get(record.request_id, record),
                record,
                key=lambda one: (one.end_ns, msgspec.json.encode(one)),
            )
    return kept.values()


def _tasks_of(record: RequestRecord, items: Mapping[str, Item]) -> Iterator[Task]:
    item = items.get(record.item_id)
    if item is None or record.outcome != "ok" or record.conversation_turn >= item.turns:
        return
    for index, check in enumerate(checks_at_turn(item, record.conversation_turn)):
        if isinstance(check, PythonCheck | JudgeCheck):
            for attempt in range(JUDGE_PASSES if isinstance(check, JudgeCheck) else 1):
                yield Task(
                    request_id=record.request_id,
                    item=item,
                    turn=record.conversation_turn,
                    check_index=index,
                    check=check,
                    answer=view_answer(record),
                    attempt=attempt,
                )


def _shuffle(tasks: list[Task], seed: int, attempt: int) -> list[Task]:
    by_id: dict[str, list[Task]] = {}
    for task in tasks:
        by_id.setdefault(task.request_id, []).append(task)
    return [task for name in order_by_seed(by_id, "judging", seed, attempt) for task in by_id[name]]
