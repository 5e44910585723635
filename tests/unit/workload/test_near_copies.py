"""Near copies: what counts as one, and that neither system prompts nor withholding change it."""

from tests.builders.records import build_item

from draftproof.tell.handover.withholding import Withholder
from draftproof.workload.clusters import find_near_copies
from draftproof.workload.items import Message

TEMPLATE = "Summarise this customer review in one sentence and say whether its tone is positive: "
REVIEWS = ("the kettle leaks", "a fine lamp", "arrived late", "too loud at night")
OTHERS = ("Why is the sky blue?", "Write a haiku on rain.", "List five prime numbers above one hundred.")


def ask(*texts, system=None):
    first = (Message(role="system", content=system),) if system else ()
    return [
        build_item(f"i{number}", messages=(*first, Message(role="user", content=text)))
        for number, text in enumerate(texts)
    ]


def test_a_filled_in_template_is_found():
    """Prompts of one template are near copies of the first of them; unlike prompts are in no group."""
    found = find_near_copies(ask(*OTHERS, *(TEMPLATE + review for review in REVIEWS)))
    assert found == dict.fromkeys(("i3", "i4", "i5", "i6"), "i3")


def test_a_long_beginning_is_found():
    """Questions behind one document that is longer than they are are near copies."""
    document = " ".join(f"Clause {number} of the contract binds party {number % 7}." for number in range(60))
    found = find_near_copies(ask(*(f"{document}\n\n{other}" for other in OTHERS), "Hello, who are you?"))
    assert found == dict.fromkeys(("i0", "i1", "i2"), "i0")


def test_a_system_prompt_that_all_share_makes_no_copies():
    """Messages that several prompts share word for word say nothing of a prompt."""
    assert find_near_copies(ask(*OTHERS, system=TEMPLATE * 20)) == {}


def test_case_and_white_space_do_not_matter():
    """A text in capitals, or broken into lines, is a copy all the same."""
    text = TEMPLATE + REVIEWS[0]
    assert find_near_copies(ask(text, text.upper(), text.replace(" ", "\n  "))) == dict.fromkeys(
        ("i0", "i1", "i2"), "i0"
    )


def test_empty_and_short_prompts_are_compared_as_they_are():
    """A prompt shorter than one run of characters is like its equal and like nothing else."""
    assert find_near_copies(ask("", "a", "b", "a ")) == {"i1": "i1", "i3": "i1"}


def test_withheld_prompts_keep_their_groups():
    """A package without prompts finds the same groups."""
    items = ask(*OTHERS, *(TEMPLATE + review for review in REVIEWS))
    withholder = Withholder(bytes(range(32)), items)
    withheld = [withholder.item(one) for one in items]
    assert "kettle" not in repr(withheld)
    assert find_near_copies(withheld) == find_near_copies(items)
