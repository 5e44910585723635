"""The turns of a conversation: what is asked at each, given the answers before it.

Pure. A later turn carries the service's own earlier answers, not written ones, so two arms that answered
differently ask differently from there on.
"""

from collections.abc import Iterator, Sequence

import msgspec

from draftproof.workload.answers import AnswerView
from draftproof.workload.items import Check, FollowUp, Item, Message

NO_RESULT = "(no result)"


def item_at_turn(item: Item, answers: Sequence[AnswerView]) -> Item:
    """Return the item as it is asked after `answers`, the answers to its earlier turns in order.

    The result has no follow-ups; its checks, limits and stop strings are those of the turn. What a model
    thought aloud is not part of the history, as the protocol has it.

    Raises:
        IndexError: the conversation has no such turn.
    """
    if not answers:
        return msgspec.structs.replace(item, follow_ups=()) if item.follow_ups else item
    turns = zip(answers, item.follow_ups, strict=False)
    history = [
        message for turn, (answer, asked) in enumerate(turns) for message in _continue(turn, answer, asked)
    ]
    asked = item.follow_ups[len(answers) - 1]
    return msgspec.structs.replace(
        item,
        messages=(*item.messages, *history),
        checks=asked.checks,
        max_tokens=asked.max_tokens or item.max_tokens,
        stop=item.stop if asked.stop is None else asked.stop,
        tool_choice=asked.tool_choice or item.tool_choice,
        follow_ups=(),
    )


def checks_at_turn(item: Item, turn: int) -> tuple[Check, ...]:
    """Return the checks of the answer at a turn, counted from 0."""
    return item.checks if turn == 0 else item.follow_ups[turn - 1].checks


def stop_at_turn(item: Item, turn: int) -> tuple[str, ...]:
    """Return the stop strings that are sent at a turn."""
    own = None if turn == 0 else item.follow_ups[turn - 1].stop
    return item.stop if own is None else own


def _continue(turn: int, answer: AnswerView, asked: FollowUp) -> Iterator[Message]:
    """Yield the answer, a result for each of its tool calls, and what is asked next."""
    ids = [f"call_{turn}_{index}" for index in range(len(answer.tool_calls))]
    yield Message(
        role="assistant",
        content=answer.text,
        tool_calls=tuple(
            {"id": name, "type": "function", "function": msgspec.to_builtins(call)}
            for name, call in zip(ids, answer.tool_calls, strict=True)
        ),
    )
    for index, name in enumerate(ids):
        result = asked.tool_results[index] if index < len(asked.tool_results) else NO_RESULT
        yield Message(role="tool", content=result, tool_call_id=name)
    # A request must end with something to answer: results that no call wanted go in the person's words.
    content = asked.content or ("" if ids else "\n".join(asked.tool_results))
    if content:
        yield Message(role=asked.role, content=content)
