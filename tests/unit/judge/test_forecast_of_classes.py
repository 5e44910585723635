"""What `draftproof check` foretells of loads that mix classes: they ask as many items as the shares allow."""

import pytest

from draftproof.judge.decide.forecast import forecast_shortfalls

SEGMENTS = ("batch", "chat")


@pytest.fixture
def foretell(world):
    """Return what is foretold of a plan whose first level has a mix, and the run that it is made of."""

    def tell(classes, *, items_per_segment=60, repeats=1, **changes):
        run = world(segments=SEGMENTS, items_per_segment=items_per_segment, **changes).run()
        level = run.plan.load[0].model_copy(update={"classes": classes, "repeats": repeats})
        plan = run.plan.model_copy(update={"load": (level, *run.plan.load[1:])})
        return [one.text for one in forecast_shortfalls(plan, run.items)]

    return tell


def test_a_class_of_a_small_share_is_counted_as_small(foretell):
    """Sixty items each, 20 to 1: three of the scarce class are asked, and six are the fewest."""
    (text,) = [text for text in foretell({"chat": 20.0, "batch": 1.0}) if "judged at all" in text]
    assert "At load low" in text
    assert "leave task=batch 3 of 60 prompts" in text
    assert "needs 3 more" in text
    assert "60 items of task = chat" in text  # twice as many of all: 120 chat, and 6 of the 60 batch


def test_the_same_items_without_a_mix_are_enough(foretell):
    """Shares alone make the difference: without them, or with equal ones, nothing is short."""
    assert not [text for text in foretell({}) if "judged" in text]
    assert not [text for text in foretell({"chat": 1.0, "batch": 1.0}) if "judged" in text]


def test_a_class_that_no_share_names_is_not_missed(foretell):
    """What a level does not ask at all has no cell there, so nothing is foretold of it."""
    assert not [text for text in foretell({"chat": 1.0}) if "judged" in text]


def test_repeats_that_draw_other_items_count_together(foretell):
    """Three of sixty a repeat: over four repeats more than six different ones are asked."""
    assert not [text for text in foretell({"chat": 20.0, "batch": 1.0}, repeats=4) if "judged" in text]


def test_margins_and_tails_are_counted_by_what_a_level_asks(foretell):
    """Of 120 items a mix of 1 to 20 asks 63: enough for p95, and too few for a margin of 5 %."""
    texts = foretell(
        {"chat": 20.0, "batch": 1.0}, evidence="representative", thresholds={"failure_margin": 0.05}
    )
    assert [text for text in texts if "At load low 63 prompts cannot show failure_margin" in text]
    assert not [text for text in texts if "At load high" in text and "failure_margin" in text]
    assert not [text for text in texts if "p95" in text]
    short = foretell({"chat": 20.0, "batch": 1.0}, items_per_segment=40, evidence="representative")
    (tail,) = [text for text in short if "p95" in text]
    assert "At load low the 42 prompts" in tail
    assert "8 more" in tail


def test_blocks_are_counted_by_what_a_level_asks(world):
    """120 items in blocks of 20 are six periods; the 63 of the mix are four, too few to tell them apart."""
    run = world(segments=SEGMENTS, items_per_segment=60, evidence="representative").run()
    told = {}
    for share in (20.0, 1.0):
        change = {"block_size": 20, "classes": {"chat": share, "batch": 1.0}}
        plan = run.plan.model_copy(update={"load": (run.plan.load[0].model_copy(update=change),)})
        told[share] = any("block_size" in one.text for one in forecast_shortfalls(plan, run.items))
    assert told == {20.0: True, 1.0: False}
