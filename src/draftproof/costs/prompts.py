"""What is asked while steps are timed: prompts full of repetition, answers of a fixed length. Pure.

A lookup drafter finds a match only in text that repeats itself, and a repeated sentence must be longer than
a draft. Every request of a wave has its own words, so that none is answered from another's cache.
"""

from draftproof.plan.schema import Scalar
from draftproof.workload.items import Item, Message

_THINGS = ("lamp", "chair", "kettle", "ladder", "basket", "mirror", "hammer", "pillow")
_PLACES = ("long table", "back wall", "narrow shelf", "open window", "front door", "stone floor")
_TIMES = 6
# The same word in vLLM, llama.cpp, SGLang and the reference engine.
FIXED_LENGTH_FIELDS: dict[str, Scalar] = {"ignore_eos": True}


def build_items(count: int, answer_tokens: int) -> tuple[Item, ...]:
    """Return `count` requests, each to copy a passage of its own over and over."""
    return tuple(
        Item(
            id=f"slot-{slot}",
            segments={},
            messages=(Message(role="user", content=_prompt(slot)),),
            max_tokens=answer_tokens,
        )
        for slot in range(count)
    )


def _prompt(slot: int) -> str:
    thing, place = _THINGS[slot % len(_THINGS)], _PLACES[slot % len(_PLACES)]
    sentence = (
        f"Number {slot + 11}: every morning the old keeper carries the {thing} to the {place}, counts "
        "the boats in the harbour, writes the sum into his book, and walks home before the rain begins. "
    )
    return f"Copy this text word for word, again and again, without an end.\n\n{sentence * _TIMES}"
