"""The simulation study: its worlds are what they say, its judge sees a false adopt, its table is its JSON."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import msgspec
import pytest

from draftproof.judge.stats.shares import share_interval

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def study():
    """The script of the study, with its worlds as `study.WORLDS`."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        module = importlib.import_module("study")
    finally:
        sys.path.remove(str(ROOT / "bench"))
    return module


@pytest.fixture(scope="module")
def kept():
    return json.loads((ROOT / "bench" / "study.json").read_text())


def find_world(study, name):
    return next(world for world in study.WORLDS if world.name == name)


def judge(study, world, index=0):
    return study.judge(world, dict.fromkeys(world.ratios, 1.0), study.decide_one(world, index))


def test_a_true_gain_is_a_gain_beyond_the_minimum(study):
    """In every world the cells called gains have a ratio of means below 0.95, drawn, not assumed."""
    for world in study.WORLDS:
        assert not world.gains & world.harms
        for cell in world.gains:
            assert study.true_ratio(world, cell, prompts=40_000) < 0.945


def test_a_world_is_decided_the_same_every_time(study):
    """The number of the run is the only source of chance."""
    world = find_world(study, "gain_low_loss_high")
    assert judge(study, world) == judge(study, world)


def test_a_false_adopt_is_seen(study):
    """Were low load no true gain, or a harm, the run that adopts there would count as false."""
    world = find_world(study, "gain_low_loss_high")
    assert judge(study, world)[:3] == ("adopt_limited", False, True)
    for wrong in (
        dataclasses.replace(world, gains=frozenset()),
        dataclasses.replace(world, harms=world.gains, gains=frozenset()),
    ):
        assert judge(study, wrong).is_false_adopt


def test_a_false_harm_is_seen(study):
    """A slower cell that the world does not call a harm counts as one when the run calls it harm."""
    world = find_world(study, "gain_low_loss_high")
    blamed = study.decide_one(world, 0)
    cells = tuple(
        msgspec.structs.replace(cell, status="harm") if cell.load == "high" else cell for cell in blamed.cells
    )
    blamed = msgspec.structs.replace(blamed, cells=cells)
    truths = dict.fromkeys(world.ratios, 1.0)
    assert not study.judge(world, truths, blamed).is_false_harm
    assert study.judge(dataclasses.replace(world, harms=frozenset()), truths, blamed).is_false_harm


def test_intervals_are_held_to_what_a_run_measures_where_nothing_tells_it_from_the_effect(study):
    """The luck of one process is in no interval of another's."""
    world = find_world(study, "one_process")
    decided, truths = study.decide_one(world, 0), dict.fromkeys(world.ratios, 1.0)
    other = dataclasses.replace(world, unseen=lambda run: 0.5 + world.unseen(run))
    assert study.judge(world, truths, decided).covered == len(world.ratios)
    assert study.judge(other, truths, decided).covered == 0


def test_rows_of_some_worlds_replace_their_own_alone(study, kept):
    """A study of one world leaves the others and their order as they are."""
    new = {"worlds": {"drift": {"runs": 3}}, "order": ["drift"]}
    merged = study.merge_rows(kept, new)
    assert merged["order"] == kept["order"]
    assert merged["worlds"] == kept["worlds"] | {"drift": {"runs": 3}}


def test_thin_worlds_are_not_decided(study):
    """Six prompts show no tail and no share: whatever the times look like, nothing is adopted."""
    world = find_world(study, "thin")
    assert {judge(study, world, index).decision for index in range(3)} <= {"inconclusive", "defer"}


def test_a_row_counts_what_was_judged(study):
    """Two right runs and a false one of a world with four true gains."""
    world = find_world(study, "gain_10_percent")
    right = study.Judged("adopt", False, True, 4, 4, 4, True, False)
    wrong = study.Judged("adopt_limited", True, False, 1, 2, 4, False, True)
    row = study.summarise(world, [right, right, wrong])
    assert row["decisions"] == {"adopt": 2, "adopt_limited": 1}
    assert (row["false_adopt_count"], row["false_adopt"]) == (1, pytest.approx(1 / 3))
    assert (row["false_harm_count"], row["false_harm"]) == (1, pytest.approx(1 / 3))
    assert (row["coverage"], row["coverage_simultaneous"]) == (pytest.approx(10 / 12), pytest.approx(2 / 3))
    assert row["power"] == pytest.approx(9 / 12)


def test_the_limit_is_the_exact_one_sided_one(study):
    """None false in 200 is at most 1 − 0.05^(1/200) = 1.49 % with 95 % (the "rule of three")."""
    world = find_world(study, "no_effect")
    row = study.summarise(world, [study.Judged("defer", False, True, 0, 4, 4, True, False)] * 200)
    assert row["false_adopt_upper95"] == pytest.approx(1 - 0.05 ** (1 / 200))
    assert row["power"] is None


def test_the_table_of_the_method_is_the_studys(study, kept):
    """docs/method.md shows the figures of bench/study.json and no others."""
    shown = (ROOT / "docs" / "method.md").read_text().split(study.TABLE_BEGINS)[1].split(study.TABLE_ENDS)[0]
    assert shown.strip() == study.render_table(kept)


def expect_stalls(world):
    """Return the chance that every cell of a run holds a stalled request; 1 where requests do not stall.

    No interval over requests of which none stalled holds a mean that stalls make up.
    """
    missing = (1 - world.stalls) ** world.layout.prompts if world.stalls else 0.0
    return (1 - missing) ** len(world.ratios)


def test_the_kept_study_is_whole_and_within_its_promises(study, kept):
    """Every world, at most 2.5 % false adopts and harms, no coverage shown to be outside 93 to 97 %, power.

    Intervals that hold jointly may hold more often than they say.

    An interval over blocks always holds the truth where as many stall in every run; an unfit client has none.
    """
    assert kept["order"] == [world.name for world in study.WORLDS]
    for world in study.WORLDS:
        row = kept["worlds"][world.name]
        assert row["runs"] == kept["runs_per_world"] == sum(row["decisions"].values())
        assert row["false_adopt"] <= 0.025
        assert row["false_harm"] <= 0.025
        assert (row["power"] is None) == (not world.gains)
        if row["coverage"] is None:
            assert row["decisions"] == {"invalid": row["runs"]}
            continue
        # Cells of one prompt at two loads share its effect: half of the intervals count.
        seen = share_interval(round(row["coverage"] * row["intervals"] / 2), row["intervals"] // 2)
        assert seen.low is not None
        assert seen.high is not None
        assert seen.low <= 0.97 or world.is_wide
        assert seen.high >= 0.93
        joint = share_interval(round(row["coverage_simultaneous"] * row["runs"]), row["runs"])
        assert joint.high is not None
        assert joint.high >= 0.93 * expect_stalls(world)
