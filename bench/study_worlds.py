"""The worlds of the simulation study: what is true in each, said before any verdict is seen.

A world draws the times of every request; the truth of a cell follows from how it draws them. `gains` are the
cells, segment × load, in which speculation truly earns its place by the plan's own thresholds: the ratio of
means is below 1 − minimum gain and no guardrail is worse than its margin. `harms` are those in which it does
damage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from tests.builders.runs import Floats, Layout, Requests

from draftproof.judge.observe.run_data import RunData

Cell = tuple[str, str]  # segment, load
# From arm, load, blocks and the source of chance to the log shift of each of the arm's periods.
Periods = Callable[[str, str, int, np.random.Generator], Floats]

TPOT_MS, TTFT_MS, TOKENS = 20.0, 100.0, 40
PROMPT_SPREAD, TTFT_SPREAD, LENGTH_SPREAD = 0.15, 0.2, 0.3
RATIO_SPREAD, REPEAT_NOISE = 0.08, 0.03
TAIL_DEGREES, TAIL_SCALE, TAIL_CAP = 3, 0.1, 2.0

THRESHOLDS = {"failure_margin": 0.05}
PLAN = {"resamples": 500}


@dataclass(frozen=True, kw_only=True)
class World:
    """One world. Ratios are candidate / baseline of the mean time per token, by cell.

    `stalls`: share of the candidate's requests that take `stall_factor` times as long. `shorter`: factor of
    the candidate's answer lengths. `lost`: share of prompts, the slowest, that the candidate fails. `drift`:
    log growth of all times over the run, with `period_noise` shared by all requests of a period. `heavy`:
    request noise of Student's t with 3 degrees of freedom. `topic_spread`: log spread of the ratio between
    topics. `is_wide`: its intervals cover more than they say, since the deciding metric is known within
    bounds, or as many periods stall in every run. `periods` shifts all times of a period, the first token's
    too. `alter` changes an arm's drawn requests, and so what is true; `rewrite` changes how the records tell
    it, and the true ratio by `truth_factor`; `unseen`: by how much more one run does, in its log.
    """

    name: str
    text: str
    ratios: Mapping[Cell, float]
    gains: frozenset[Cell] = frozenset()
    harms: frozenset[Cell] = frozenset()
    layout: Layout = field(default_factory=Layout)
    alternative: float | None = None
    metric: str = "tpot_ns"
    ratio_spread: float = RATIO_SPREAD
    topic_spread: float = 0.0
    stalls: float = 0.0
    stall_factor: float = 4.0
    shorter: float = 1.0
    lost: float = 0.0
    drift: float = 0.0
    period_noise: float = 0.0
    heavy: bool = False
    is_wide: bool = False
    periods: Periods | None = None
    alter: Callable[[str, Requests], Requests] | None = None
    rewrite: Callable[[RunData], RunData] | None = None
    truth_factor: float = 1.0
    unseen: Callable[[RunData], float] | None = None


def draw_requests(
    world: World, layout: Layout, orders: Mapping[tuple[str, int], tuple[str, ...]], rng: np.random.Generator
) -> dict[tuple[str, str, str], Requests]:
    """Return the requests of every arm in every cell, shape (prompts,) each."""
    periods = _draw_periods(world, layout, orders, rng)
    drawn: dict[tuple[str, str, str], Requests] = {}
    for segment in layout.segments:
        prompts = _draw_prompts(world, layout, rng)
        for load, _ in layout.loads:
            for arm in layout.arms:
                effect = _log_effect(world, arm, (segment, load), prompts["effect"])
                log_time = prompts["tpot"] + effect + periods[arm, load] + _noise(world, layout.prompts, rng)
                made = _make_requests(world, arm, log_time, prompts, rng)
                if world.periods is not None:
                    made = made._replace(ttft_ms=made.ttft_ms * np.exp(periods[arm, load]))
                drawn[arm, segment, load] = made if world.alter is None else world.alter(arm, made)
    return drawn


def true_ratio(world: World, cell: Cell, prompts: int = 400_000) -> float:
    """Return the true ratio of means of a cell's deciding metric, from a large sample of the world itself."""
    arms = ("baseline", "candidate")
    layout = Layout(
        segments=(cell[0],),
        loads=tuple(load for load in world.layout.loads if load[0] == cell[1]),
        prompts=prompts,
        prompts_per_topic=world.layout.prompts_per_topic,
        copies=world.layout.copies,
        block_size=prompts,
        arms=arms,
    )
    orders = {(cell[1], 0): arms}
    still = World(**(vars(world) | {"period_noise": 0.0, "drift": 0.0, "periods": None}))
    drawn = draw_requests(still, layout, orders, np.random.default_rng(1))
    below, above = (drawn[arm, *cell] for arm in arms)
    kept = below.is_ok & above.is_ok
    drawn_ratio = float(_metric(world, above)[kept].mean() / _metric(world, below)[kept].mean())
    return world.truth_factor * drawn_ratio


def _metric(world: World, requests: Requests) -> Floats:
    if world.metric == "tpot_ns":
        return requests.tpot_ms
    return requests.ttft_ms + requests.tpot_ms * (requests.tokens - 1)


def _draw_prompts(world: World, layout: Layout, rng: np.random.Generator) -> dict[str, Floats]:
    count = layout.prompts
    topics = np.arange(count) // (layout.prompts_per_topic or layout.copies)
    spread = np.hypot(world.ratio_spread, world.topic_spread)
    effect = rng.normal(0, world.ratio_spread, count) + rng.normal(0, world.topic_spread, count)[topics]
    return {
        "tpot": rng.normal(np.log(TPOT_MS), PROMPT_SPREAD, count),
        "ttft": rng.normal(np.log(TTFT_MS), TTFT_SPREAD, count),
        "tokens": np.maximum(8, np.round(TOKENS * np.exp(rng.normal(0, LENGTH_SPREAD, count)))),
        "effect": effect - spread**2 / 2,  # so that the mean of the factor is 1
    }


def _draw_periods(
    world: World, layout: Layout, orders: Mapping[tuple[str, int], tuple[str, ...]], rng: np.random.Generator
) -> dict[tuple[str, str], Floats]:
    """Return the log shift of every prompt by the time of its period, by arm and load."""
    shifts: dict[tuple[str, str], Floats] = {}
    periods = len(layout.loads) * layout.blocks * len(layout.arms)
    for place, (load, _) in enumerate(layout.loads):
        for arm in layout.arms:
            position = [orders[load, block].index(arm) for block in range(layout.blocks)]
            number = (place * layout.blocks + np.arange(layout.blocks)) * len(layout.arms) + position
            shift = world.drift * number / periods + rng.normal(0, world.period_noise, layout.blocks)
            if world.periods is not None:
                shift = shift + world.periods(arm, load, layout.blocks, rng)
            shifts[arm, load] = shift[np.arange(layout.prompts) % layout.blocks]
    return shifts


def _log_effect(world: World, arm: str, cell: Cell, effect: Floats) -> Floats | float:
    if arm == "candidate":
        return np.log(world.ratios[cell]) + effect
    if arm == "alternative" and world.alternative is not None:
        return float(np.log(world.alternative))
    return 0.0


def _noise(world: World, count: int, rng: np.random.Generator) -> Floats:
    if world.heavy:
        return np.clip(TAIL_SCALE * rng.standard_t(TAIL_DEGREES, count), -TAIL_CAP, TAIL_CAP)
    return rng.normal(0, REPEAT_NOISE, count)


def _make_requests(
    world: World, arm: str, log_time: Floats, prompts: dict[str, Floats], rng: np.random.Generator
) -> Requests:
    count, is_candidate = len(log_time), arm == "candidate"
    time = np.exp(log_time)
    stalled = rng.random(count) < (world.stalls if is_candidate else 0.0)
    slowest = prompts["tpot"] > np.quantile(prompts["tpot"], 1 - world.lost)
    length = np.round(prompts["tokens"] * (world.shorter if is_candidate else 1.0))
    return Requests(
        tpot_ms=np.where(stalled, world.stall_factor * time, time),
        ttft_ms=np.exp(prompts["ttft"] + rng.normal(0, REPEAT_NOISE, count)),
        tokens=length.astype(np.int64),
        is_ok=~(slowest & is_candidate) if world.lost else np.ones(count, dtype=bool),
    )


def everywhere(ratio: float, layout: Layout | None = None) -> dict[Cell, float]:
    """Return one ratio for every cell of a layout, by default two segments at two loads."""
    layout = layout or STANDARD
    return {(segment, load): ratio for segment in layout.segments for load, _ in layout.loads}


def make_layout(**changes: object) -> Layout:
    """Return the layout of the study with some of its settings changed."""
    settings: dict[str, object] = {"thresholds": THRESHOLDS, "comparison": PLAN, "block_size": 5} | changes
    return Layout(**settings)  # type: ignore[arg-type]


STANDARD = make_layout()
THIN = make_layout(prompts=6, block_size=1)
MANY = make_layout(segments=tuple(f"segment{number:02}" for number in range(12)), prompts=16, block_size=2)
DEEP = make_layout(
    segments=("rewriting", "chat", "code"),
    loads=(("low", 1),),
    prompts=100,
    thresholds=THRESHOLDS | {"tail_quantile": "p99"},
)
TOPICS = make_layout(prompts=60, prompts_per_topic=4, comparison=PLAN | {"cluster_by": "topic"})
COPIES = make_layout(prompts=48, copies=4)
RIVAL = make_layout(arms=("baseline", "candidate", "alternative", "baseline_null"))
BY_LENGTH = make_layout(comparison=PLAN | {"metric": "e2e_from_schedule_ns"})

ALL = frozenset(everywhere(1.0, STANDARD))
LOW = frozenset(cell for cell in ALL if cell[1] == "low")
REWRITING = frozenset(cell for cell in ALL if cell[0] == "rewriting")

WORLDS: tuple[World, ...] = (
    World(
        name="no_effect",
        text="The candidate changes nothing on average; prompts profit or lose by 8 %.",
        ratios=everywhere(1.0, STANDARD),
        layout=STANDARD,
    ),
    World(
        name="gain_at_the_minimum",
        text="The true gain is exactly the plan's minimum of 5 %, so no interval may lie beyond it.",
        ratios=everywhere(0.95, STANDARD),
        layout=STANDARD,
    ),
    World(
        name="gain_10_percent",
        text="Time per token falls by 10 % everywhere.",
        ratios=everywhere(0.90, STANDARD),
        gains=ALL,
        layout=STANDARD,
    ),
    World(
        name="gain_in_one_segment",
        text="Rewriting gains 15 %, chat nothing.",
        ratios={cell: 0.85 if cell in REWRITING else 1.0 for cell in ALL},
        gains=REWRITING,
        layout=STANDARD,
    ),
    World(
        name="gain_low_loss_high",
        text="15 % faster at low load, 8 % slower at high load.",
        ratios={cell: 0.85 if cell in LOW else 1.08 for cell in ALL},
        gains=LOW,
        harms=ALL - LOW,
        layout=STANDARD,
    ),
    World(
        name="gain_in_mean_loss_at_p99",
        text="20 % faster, but 3 % of the requests take four times as long: the mean gains, p99 triples.",
        ratios=everywhere(0.80, DEEP),
        harms=frozenset(everywhere(1.0, DEEP)),
        layout=DEEP,
        stalls=0.03,
    ),
    World(
        name="shorter_answers",
        text="End-to-end time decides; answers are 25 % shorter and no token comes sooner.",
        ratios=everywhere(1.0, BY_LENGTH),
        harms=ALL,
        layout=BY_LENGTH,
        metric="e2e_from_schedule_ns",
        shorter=0.75,
    ),
    World(
        name="slightly_shorter_answers",
        text="As before, with answers 8 % shorter: less than the plan's margin for their length.",
        ratios=everywhere(1.0, BY_LENGTH),
        layout=BY_LENGTH,
        metric="e2e_from_schedule_ns",
        shorter=0.92,
    ),
    World(
        name="failures_in_one_arm",
        text="15 % faster, but the candidate fails the slowest 8 % of the prompts; 5 points are allowed.",
        ratios=everywhere(0.85, STANDARD),
        harms=ALL,
        layout=STANDARD,
        lost=0.08,
    ),
    World(
        name="drift",
        text="No effect; all times grow by half over the run, and each period is off by 1 %.",
        ratios=everywhere(1.0, STANDARD),
        layout=STANDARD,
        drift=0.4,
        period_noise=0.01,
    ),
    World(
        name="noisy_periods",
        text="No effect; each period of an arm is off by 5 % for all its requests.",
        ratios=everywhere(1.0, STANDARD),
        layout=STANDARD,
        period_noise=0.05,
    ),
    World(
        name="many_segments",
        text="No effect in any of 12 segments at two loads, 16 prompts each: 24 chances to be fooled.",
        ratios=everywhere(1.0, MANY),
        layout=MANY,
    ),
    World(
        name="heavy_tails",
        text="20 % faster; request noise of Student's t with 3 degrees of freedom on the log scale.",
        ratios=everywhere(0.80, STANDARD),
        gains=ALL,
        layout=STANDARD,
        heavy=True,
    ),
    World(
        name="correlated_prompts",
        text="15 % faster; four prompts share a topic, whose effects differ by 6 %; the plan names topics.",
        ratios=everywhere(0.85, TOPICS),
        gains=ALL,
        layout=TOPICS,
        topic_spread=0.06,
    ),
    World(
        name="copied_prompts",
        text="No effect beyond the minimum; 12 prompts of a segment, each asked as 4 items word for word.",
        ratios=everywhere(0.95, COPIES),
        layout=COPIES,
        ratio_spread=0.01,
        topic_spread=0.08,
    ),
    World(
        name="better_alternative",
        text="15 % faster, but the alternative inside the same budget is 20 % faster; 5 % are allowed.",
        ratios=everywhere(0.85, RIVAL),
        layout=RIVAL,
        alternative=0.80,
    ),
    World(
        name="thin",
        text="10 % faster, with six prompts in each segment.",
        ratios=everywhere(0.90, THIN),
        gains=ALL,
        layout=THIN,
    ),
)
