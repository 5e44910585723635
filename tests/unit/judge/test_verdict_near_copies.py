"""What near copies count for: by how their ratios go together in the run, at worst before it."""

import msgspec
import numpy as np
import pytest
from test_verdict_clusters import draw
from tests.builders.runs import Layout

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.near_copies import foresee_near_copies
from draftproof.workload.items import Message

WORDS = np.random.default_rng(7).integers(97, 123, (12, 30, 6))


def measure(topic, behind="", **changes):
    """Return a run of 48 prompts, four of each of 12 templates, whose effects differ by `topic`.

    `behind` is a text that all of them begin with.
    """
    layout = Layout(segments=("chat",), loads=(("low", 1),), prompts=48, prompts_per_topic=4, **changes)
    run = draw(layout, topic=topic)
    items = tuple(
        msgspec.structs.replace(item, messages=(Message(role="user", content=behind + _write(number)),))
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


def faster(topic, by, **changes):
    """Return a run as `measure` does, whose candidate takes `by` of its time for each token."""
    margins = {"failure_margin": 1.0, "quality_margin": 1.0, "token_limit_margin": 1.0}
    run = measure(topic, evidence="synthetic", thresholds=margins, **changes)
    records = tuple(_hurry(one, by) if one.arm == "candidate" else one for one in run.records)
    return msgspec.structs.replace(run, records=records)


def _hurry(record, by):
    start = record.chunks[0].arrival_ns
    times = [round(start + by * (chunk.arrival_ns - start)) for chunk in record.chunks]
    chunks = tuple(
        msgspec.structs.replace(chunk, arrival_ns=time)
        for chunk, time in zip(record.chunks, times, strict=True)
    )
    return msgspec.structs.replace(record, chunks=chunks, end_ns=times[-1] + 1)


def statuses(run):
    cells = compute_results(run).cells
    return {cell.status for cell in cells}, {reason.code for cell in cells for reason in cell.reasons}


def test_a_gain_that_rests_on_near_copies_is_not_credited():
    """Twelve templates whose effects differ by 10 % do not show 10 %, though 48 prompts would."""
    found, codes = statuses(faster(0.1, 0.9))
    assert found == {"inconclusive"}
    assert {"effect_gain", "gain_by_near_copies"} <= codes
    assert statuses(faster(0.1, 0.9, comparison={"cluster_by": "topic"}))[0] == {"inconclusive"}


def test_templates_behind_one_beginning_are_told_apart():
    """What every prompt begins with says nothing of a prompt: the templates behind it are the groups."""
    shared = _write(0) + _write(16) + _write(28) + " ".join(map(str, WORDS.ravel()))
    assert "48 prompts count for 12" in next(foresee_near_copies(measure(0.0, shared).items, None))
    assert "gain_by_near_copies" in statuses(faster(0.1, 0.9, behind=shared))[1]


def test_questions_behind_one_text_are_still_one_group():
    """Prompts that differ behind a long text are near copies of each other, as they always were."""
    shared = " ".join(bytes(word).decode() for word in WORDS.reshape(-1, 6).astype(np.uint8)) * 2
    run = measure(0.0)
    items = [
        msgspec.structs.replace(
            item, messages=(Message(role="user", content=f"{shared} {WORDS[number % 12, number % 30]}"),)
        )
        for number, item in enumerate(run.items[:20])
    ]
    assert "20 prompts count for 1" in next(foresee_near_copies(items, None))


def test_a_gain_that_near_copies_show_together_is_credited():
    """Where the templates have one effect, four prompts of each do no harm."""
    assert statuses(faster(0.0, 0.9))[0] == {"gain"}
