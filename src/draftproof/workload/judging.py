"""What functions and judge models are asked after a run, and what their words mean.

Pure: which answers are still to be judged and in which order, the prompt of a judge, the verdict in a reply.
A judge sees the question, the answer and the rubric; never the arm, the load or another answer.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from draftproof.core.records import Judgement, RequestRecord
from draftproof.workload.arm_orders import order_by_seed
from draftproof.workload.conversation import AnswerView, checks_at_turn, view_answer
from draftproof.workload.items import Item, JudgeCheck, Message, PythonCheck

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
