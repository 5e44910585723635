"""What near copies count for: by how their ratios go together in the run, at worst before it."""

import msgspec
import numpy as np
import pytest
from test_verdict_clusters import draw

from draftproof.testing.synthetic_runs import Layout
from draftproof.verdict.compute import compute_results
from draftproof.verdict.near_copies import foresee_near_copies
from draftproof.workload.items import Message

WORDS = np.random.default_rng(7).integers(97, 123, (12, 30, 6))


def measure(topic, **changes):
    """Return a run of 48 prompts, four of each of 12 templates, whose effects differ by `topic`."""
    layout = Layout(segments=("chat",), loads=(("low", 1),), prompts=48, prompts_per_topic=4, **changes)
    run = draw(layout, topic=topic)
    items = tuple(
        msgspec.structs.replace(item, messages=(Message(role="user", content=_write(number)),))
        for number, item in enumerate(run.items)
    )
    return msgspec.structs.replace(run, items=items)


def _write(number):
    own = " ".join(bytes(word).decode() for word in WORDS[number // 4].astype(np.uint8))
    return f"{own}, case {number}?"


def warnings(run):
    return [text for text in compute_results(run).warnings if "near copies" in text]


@pytest.mark.parametrize(("topic", "fewest", "most"), [(0.2, 12, 13), (0.0, 35, 48)])
def test_near_copies_count_for_what_their_ratios_say(topic, fewest, most):
    """Twelve templates of four prompts count for 12 if each has an effect of its own, for most if not."""
    (text,) = warnings(measure(topic))
    assert text.startswith("48 of 48 prompts are near copies of another")
    assert fewest <= int(text.partition("count for about ")[2].partition(".")[0]) <= most


def test_prompts_that_the_plan_groups_are_not_warned_about():
    """Where cluster_by names the templates, intervals count them and nothing is left to say."""
    assert warnings(measure(0.2, comparison={"cluster_by": "topic"})) == []


def test_unlike_prompts_are_not_warned_about():
    """Prompts with texts of their own give no warning."""
    run = measure(0.0)
    alone = tuple(item for number, item in enumerate(run.items) if number % 4 == 0)
    assert list(foresee_near_copies(alone, None)) == []


def test_before_a_run_the_worst_is_said():
    """Without a measurement each group counts for one prompt."""
    (text,) = foresee_near_copies(measure(0.0).items, None)
    assert "48 prompts count for 12" in text
    assert list(foresee_near_copies(measure(0.0).items, "topic")) == []
