"""Properties of open loops, replays and classes in the block plan: the stated load, the same in every arm."""

import itertools
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.clock import NS_PER_S
from draftproof.core.errors import UsageError
from draftproof.measure.load.period import periods_of
from draftproof.workload.arrivals import OnOff, OpenLoop, Ramp, Spacing, Steady, Steps
from draftproof.workload.blocks import plan_blocks, request_seed
from draftproof.workload.items import Item, Message

ARMS = ("baseline", "candidate", "alternative")


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A load level with just what the block plan reads."""

    name: str = "peak"
    concurrency: int | None = None
    repeats: int = 1
    block_size: int = 8
    open_loop: OpenLoop | None = None
    replay_speed: float | None = None
    classes: dict[str, float] = msgspec.field(default_factory=dict)


def make_item(number, *, due_ns=None, **segments):
    return Item(
        id=f"i{number:03}",
        messages=(Message(role="user", content="x"),),
        segments=segments or {"task": "chat"},
        due_ns=due_ns,
    )


def plan(items, level, seed=1, segment_by=("task",)):
    return plan_blocks(tuple(items), (level,), ARMS, seed, segment_by)


rates, durations = st.floats(0.1, 200), st.floats(0.05, 20)
profiles = st.one_of(
    st.builds(Steady, rps=rates),
    st.builds(Ramp, from_rps=st.floats(0, 100), to_rps=rates, ramp_s=durations),
    st.builds(Steps, rps=st.tuples(rates, rates), step_s=durations),
    st.builds(OnOff, on_rps=rates, on_s=durations, off_rps=st.floats(0, 20), off_s=durations),
)
spacings = st.one_of(
    st.builds(Spacing, kind=st.sampled_from(["even", "poisson"])),
    st.builds(Spacing, kind=st.just("gamma"), cv=st.floats(0.2, 5)),
)
open_levels = st.builds(
    Level,
    repeats=st.integers(1, 3),
    block_size=st.integers(1, 9),
    open_loop=st.builds(OpenLoop, profile=profiles, spacing=spacings),
)
counts = st.integers(1, 40)
seeds = st.integers(0, 2**32 - 1)
traces = st.lists(st.integers(0, 10**11), min_size=1, max_size=40).map(
    lambda times: tuple(make_item(number, due_ns=due) for number, due in enumerate(times))
)


@settings(max_examples=60, deadline=None)
@given(counts, open_levels, seeds)
def test_every_item_of_an_open_loop_is_due_in_order(count, level, seed):
    """Each item of a block has its own due time, from 0 on, never before the one in front of it."""
    for block in plan(map(make_item, range(count)), level, seed):
        assert len(block.due_ns) == len(block.item_ids)
        assert list(block.due_ns) == sorted(block.due_ns)
        assert block.due_ns[0] >= 0
        assert block.concurrency is None


@settings(max_examples=60, deadline=None)
@given(counts, open_levels, seeds)
def test_every_arm_meets_the_same_arrivals(count, level, seed):
    """The periods of a block agree in items, order, due times and lead; requests agree in their seeds."""
    items = {item.id: item for item in map(make_item, range(count))}
    for block in plan(items.values(), level, seed):
        periods = periods_of(block)
        assert {period.arm for period in periods} == set(ARMS)
        assert (
            len({(period.item_ids, period.due_ns, repr(period.ramp_up), period.repeat) for period in periods})
            == 1
        )
        assert len({tuple(request_seed(items[i], t.repeat) for i in t.item_ids) for t in periods}) == 1


@settings(max_examples=40, deadline=None)
@given(counts, open_levels, seeds)
def test_arrivals_depend_on_seed_level_repeat_and_block_alone(count, level, seed):
    """The order in which items and arms are listed changes nothing."""
    items = tuple(map(make_item, range(count)))
    assert plan(items, level, seed) == plan_blocks(items[::-1], (level,), ARMS[::-1], seed)


def test_blocks_draw_arrivals_of_their_own():
    """Two blocks, two repeats, two seeds and two levels never share their random arrivals."""
    items = tuple(map(make_item, range(16)))
    loop = OpenLoop(profile=Steady(rps=5.0))
    drawn = [
        block.due_ns
        for name, seed in itertools.product(("one", "two"), (1, 2))
        for block in plan(items, Level(name=name, open_loop=loop, repeats=2), seed)
    ]
    assert len(drawn) == len(set(drawn)) == 16


@pytest.mark.parametrize(
    ("profile", "rps"),
    [
        (Steady(rps=3.0), 3.0),
        (Ramp(from_rps=2.0, to_rps=9.0, ramp_s=5.0), 2.0),
        (Steps(rps=(4.0, 1.0), step_s=5.0), 4.0),
        (OnOff(on_rps=9.0, on_s=1.0, off_rps=0.5, off_s=1.0), 0.5),
        (OnOff(on_rps=9.0, on_s=1.0, off_rps=0.0, off_s=1.0), None),
        (Ramp(from_rps=0.0, to_rps=9.0, ramp_s=5.0), None),
    ],
)
def test_a_lead_has_the_rate_that_a_shape_starts_from(profile, rps):
    """What leads up to a shape is steady, spaced alike, at its first rate; a shape from 0 has no lead."""
    spacing = Spacing(kind="gamma", cv=2.0)
    (block,) = plan([make_item(0)], Level(open_loop=OpenLoop(profile=profile, spacing=spacing)))
    wanted = None if rps is None else OpenLoop(profile=Steady(rps=rps), spacing=spacing)
    assert block.ramp_up == wanted


@settings(max_examples=80, deadline=None)
@given(traces, st.integers(1, 9), st.floats(0.01, 100), st.integers(1, 2), seeds)
def test_a_replay_is_the_trace_in_windows(items, block_size, speed, repeats, seed):
    """Each repeat asks every item once, in recorded order; gaps of a block are the recorded ones / speed."""
    level = Level(replay_speed=speed, block_size=block_size, repeats=repeats)
    recorded = {item.id: item.due_ns for item in items}
    blocks = plan(items, level, seed)
    for repeat in range(repeats):
        own = [block for block in blocks if block.repeat == repeat]
        asked = [item_id for block in own for item_id in block.item_ids]
        assert asked == sorted(recorded, key=lambda item_id: (recorded[item_id], item_id))
        assert {len(block.item_ids) for block in own[:-1]} <= {block_size}
    for block in blocks:
        offsets = [recorded[item_id] - recorded[block.item_ids[0]] for item_id in block.item_ids]
        assert list(block.due_ns) == [round(offset / speed) for offset in offsets]


@settings(max_examples=60, deadline=None)
@given(traces, st.integers(2, 9), st.floats(0.1, 10))
def test_the_lead_of_a_replay_has_the_rate_of_its_window(items, block_size, speed):
    """Gaps of a window over its span, as fast as replayed; no lead where all came at one moment."""
    for block in plan(items, Level(replay_speed=speed, block_size=block_size)):
        recorded = [item.due_ns for item in items if item.id in block.item_ids]
        span_s = (max(recorded) - min(recorded)) / speed / NS_PER_S
        if span_s == 0:
            assert block.ramp_up is None
        else:
            assert block.ramp_up is not None
            assert isinstance(block.ramp_up.profile, Steady)
            assert block.ramp_up.profile.rps == pytest.approx((len(recorded) - 1) / span_s)


def test_a_replay_needs_times():
    """Items without a recorded time are refused by the level's name."""
    with pytest.raises(UsageError, match="when each request came") as raised:
        plan([make_item(0)], Level(replay_speed=1.0))
    assert raised.value.place == "load level peak"


labels = st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))
shares = st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 10), min_size=1)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(labels, min_size=1, max_size=60),
    shares,
    st.integers(1, 9),
    seeds,
    st.sampled_from([("class",), ("class", "task")]),
)
def test_classes_keep_their_shares_in_every_block(drawn, wanted, block_size, seed, segment_by):
    """Of a level each class has its share of the items, and of every block its share of these, within one."""
    items = [make_item(n, **{"class": label, "task": task}) for n, (label, task) in enumerate(drawn)]
    label_of = {item.id: item.segments["class"] for item in items}
    level = Level(concurrency=2, classes=wanted, block_size=block_size)
    if not set(wanted) <= set(label_of.values()):
        with pytest.raises(UsageError, match="no item has class"):
            plan(items, level, seed, segment_by)
        return
    blocks = plan(items, level, seed, segment_by)
    kept = Counter(label_of[item_id] for block in blocks for item_id in block.item_ids)
    assert set(kept) == set(wanted)
    scale = min(Counter(label_of.values())[name] / wanted[name] for name in wanted)
    for name, share in wanted.items():
        assert abs(kept[name] - scale * share) < 1
        per_block = [sum(label_of[i] == name for i in block.item_ids) for block in blocks]
        assert max(per_block) - min(per_block) <= 1


def test_classes_leave_the_items_of_each_repeat_to_the_seed():
    """Which items stand for a class is drawn anew for each repeat, the same for every arm."""
    items = [make_item(n, task="chat" if n < 4 else "batch") for n in range(30)]
    blocks = plan(items, Level(classes={"chat": 1, "batch": 1}, repeats=2, concurrency=1))
    asked = [{i for block in blocks if block.repeat == repeat for i in block.item_ids} for repeat in (0, 1)]
    assert [len(one) for one in asked] == [8, 8]
    assert asked[0] != asked[1]
