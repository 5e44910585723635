"""Loads by rate: how large one is, in which order, up to which one speculation may run, in which words."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.builders.runs import Layout, Requests, build_run, order_periods

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.envelope import Envelope, EnvelopeArea, build_envelope, is_inside
from draftproof.judge.decide.outcome import find_limits
from draftproof.judge.decide.wording import render_sentence
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.results.decide import read_reference
from draftproof.judge.results.run import Cell, EnvelopeEntry, Figure, Results
from draftproof.plan.limits import LoadLimit, LoadSize, measure_sizes, write_rate
from draftproof.plan.load import LoadLevel
from draftproof.tell.monitoring.watch import find_load_limits

FIXTURES = Path(__file__).parents[2] / "fixtures" / "runs"
BURSTS = {"bursts": {"on_rps": 8.0, "on_s": 1.0, "off_s": 1.0}, "spacing": "even"}
STEADY = {"rps": 4.0, "spacing": "even"}


def make_run(loads, *, ratio=0.6, prompts=24, segments=("chat",), **changes):
    """A candidate whose time per token is `ratio` of the baseline's, by load where that is a mapping."""
    settings: dict[str, Any] = {
        "evidence": "synthetic",
        "block_size": 6,
        "thresholds": {"failure_margin": 0.25, "quality_margin": 0.25},
    } | changes
    layout = Layout(segments=segments, loads=loads, prompts=prompts, **settings)
    rng = np.random.default_rng(3)
    drawn = {
        (arm, segment, load): Requests(
            tpot_ms=20.0
            * ((ratio[load] if isinstance(ratio, dict) else ratio) if arm == "candidate" else 1.0)
            * np.exp(rng.normal(0, 0.01, prompts)),
            ttft_ms=np.full(prompts, 100.0),
            tokens=np.full(prompts, 40),
            is_ok=np.ones(prompts, dtype=bool),
        )
        for segment in segments
        for load, _ in loads
        for arm in layout.arms
    }
    return build_run(layout, drawn, order_periods(layout, rng))


def make_cell(status, size, segment="task=chat", load=None):
    return Cell(
        segment=segment,
        load=load or size.label,
        concurrency=size.concurrency,
        offered_rps=size.offered_rps,
        load_shape=size.shape,
        status=status,
        effect=Figure(value=0.6, low=0.55, high=0.65),
        alternative_effect=None,
        reasons=(),
    )


def closed(count):
    return LoadSize(concurrency=count)


def rate(rps):
    return LoadSize(offered_rps=rps)


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (closed(1), "1 request in flight"),
        (closed(8), "8 requests in flight"),
        (LoadSize(concurrency=8, shape="2 s of thought"), "8 requests in flight, 2 s of thought"),
        (rate(4.0), "4 requests/s"),
        (rate(4.236), "4.24 requests/s"),
        (LoadSize(offered_rps=4.2, shape="bursts"), "bursts, 4.2 requests/s on average"),
        (LoadSize(offered_rps=0.05, shape="replay at 2×"), "replay at 2×, 0.05 requests/s on average"),
        (LoadSize(shape="replay at 1×"), "replay at 1×"),
    ],
)
def test_a_load_has_a_label_that_says_how_large_it_is(size, label):
    """The label names what is in flight, or the rate with the shape of an uneven one."""
    assert size.label == label


def test_rates_are_written_to_three_significant_digits():
    """No rate is written with more digits than it has, none loses its unit."""
    found = [write_rate(one) for one in (0.123456, 1.0, 12.34, 1234.5)]
    assert found == ["0.123 requests/s", "1 requests/s", "12.3 requests/s", "1,234 requests/s"]


def test_a_steady_rate_is_the_plans_and_a_shape_has_the_mean_of_its_arrivals():
    """Eight a second for one second in two is four a second on average, and the label names the shape."""
    prepared = prepare_run(make_run((("steady", STEADY), ("bursts", BURSTS)), prompts=128, block_size=32))
    assert prepared.sizes["steady"] == LoadSize(offered_rps=4.0)
    found = prepared.sizes["bursts"]
    assert found.shape == "bursts"
    assert found.offered_rps == pytest.approx(4.0, rel=0.15)


def test_every_arm_tells_the_same_rate_of_a_shape():
    """The rate is that of the schedule: the arms' own records alone give the very same number."""
    run = make_run((("bursts", BURSTS),), prompts=64, block_size=32)
    rates = set()
    for arm in ("baseline", "candidate"):
        own = tuple(one for one in run.records if one.arm == arm)
        rates.add(prepare_run(msgspec.structs.replace(run, records=own)).sizes["bursts"].offered_rps)
    assert len(rates) == 1


def test_a_shape_without_a_complete_period_has_no_rate():
    """A rate is never guessed: periods that were broken off tell none, and no limit covers such a load."""
    run = make_run((("bursts", BURSTS),), prompts=24)
    broken = tuple(msgspec.structs.replace(one, completed=False) for one in run.blocks)
    size = prepare_run(msgspec.structs.replace(run, blocks=broken)).sizes["bursts"]
    assert size == LoadSize(shape="bursts")
    assert not LoadLimit(concurrency=8, rps=100.0).covers(size)


def test_a_replay_names_its_speed():
    """Of a replay the label has the speed, whatever the rate of the trace."""
    level = LoadLevel.model_validate({"name": "trace", "replay": {"speed": 2}})
    assert measure_sizes([level], {}, [])["trace"].shape == "replay at 2×"


def test_loads_are_ordered_closed_first_then_by_rate():
    """Closed loops come by requests in flight, then open ones by rate, in the run and in its results."""
    loads = (("fast", {"rps": 9.0}), ("eight", 8), ("slow", {"rps": 2.0}), ("one", 1))
    run = make_run(loads)
    assert prepare_run(run).loads == ("one", "eight", "slow", "fast")
    results = compute_results(run)
    assert results.loads == (("one", 1), ("eight", 8), ("slow", None), ("fast", None))
    assert [size.label for size in results.sizes.values()][2:] == ["2 requests/s", "9 requests/s"]


def test_each_axis_has_its_own_limit():
    """Requests in flight and rates are judged apart: each limit is the highest gain on its own axis."""
    cells = (
        make_cell("gain", closed(1)),
        make_cell("gain", closed(8)),
        make_cell("harm", closed(32)),
        make_cell("neutral", rate(1.0)),
        make_cell("gain", rate(2.0)),
        make_cell("neutral", rate(4.0)),
        make_cell("inconclusive", rate(8.0)),
    )
    assert find_limits(cells) == {"task=chat": LoadLimit(concurrency=8, rps=2.0)}


def test_a_segment_without_a_gain_on_one_axis_is_out():
    """A limit on requests in flight alone would let speculation run at rates that were shown to do harm."""
    cells = (make_cell("gain", closed(1)), make_cell("harm", rate(1.0)))
    assert find_limits(cells) == {}
    assert find_limits(cells[:1]) == {"task=chat": LoadLimit(concurrency=1)}


def test_a_load_of_unknown_rate_closes_its_axis():
    """Where a load lies is not known, so no limit on its axis can be said to end below it."""
    assert find_limits((make_cell("gain", rate(1.0)), make_cell("harm", LoadSize(shape="ramp")))) == {}


def test_an_open_loop_run_is_adopted_up_to_its_rate():
    """A gain at every rate is adopted; sentence, envelope and monitoring state the highest rate."""
    run = make_run((("low", {"rps": 2.0}), ("peak", {"rps": 6.5})), segments=("chat", "rewriting"))
    results = compute_results(run)
    assert results.verdict.decision == "adopt"
    assert "up to 6.5 requests/s, time per token falls by" in results.verdict.sentence
    assert {(one.max_concurrency, one.max_rps) for one in results.verdict.envelope} == {(None, 6.5)}
    limits = find_load_limits(results, run.plan)
    assert set(limits) == {"rate"}
    assert limits["rate"].value == 6.5
    assert limits["rate"].source == "the envelope's highest rate of 6.5 requests/s"


def test_a_mixed_run_ends_on_each_axis_where_its_gain_ends():
    """Harm at the highest rate cuts the rate and leaves the requests in flight; the sentence says both."""
    loads = (("one", 1), ("eight", 8), ("low", {"rps": 2.0}), ("peak", {"rps": 8.0}))
    ratio = {"one": 0.6, "eight": 0.6, "low": 0.6, "peak": 1.5}
    decided = decide_run(make_run(loads, ratio=ratio))
    entry = decided.envelope[0]
    assert decided.decision == "adopt_limited"
    assert (entry.max_concurrency, entry.max_rps) == (8, 2.0)
    assert entry.gain_loads == ("one", "eight", "low")
    sentence = render_sentence(
        decided.decision,
        "representative",
        cells=decided.cells,
        envelope=decided.envelope,
        metric="tpot_ns",
        reasons=(),
    )
    assert "chat up to 8 requests in flight and 2 requests/s, where" in sentence
    assert sentence.endswith("not at 8 requests/s.")


def test_the_envelope_document_goes_through_json_with_its_rates():
    """A document with a rate says version 2, comes back equal, and holds a request to each stated limit."""
    loads = (("eight", 8), ("low", {"rps": 2.0}))
    document = build_envelope(compute_results(make_run(loads)), None)
    assert document.schema_version == 2
    assert msgspec.json.decode(msgspec.json.encode(document), type=Envelope) == document
    area = document.entries[0]
    assert [(one.load, one.concurrency, one.offered_rps) for one in area.loads] == [
        ("eight", 8, None),
        ("low", None, 2.0),
    ]
    labels = {"task": "chat"}
    assert is_inside(document, labels, 8, 50, 2.0)
    assert not is_inside(document, labels, 9, 50, 2.0)
    assert not is_inside(document, labels, 8, 50, 2.1)
    assert not is_inside(document, labels, 8, 50)
    assert not is_inside(document, labels, None, 50, 2.0)


def test_what_was_written_before_rates_existed_still_loads():
    """Rows and documents without the new fields come back as closed loops."""
    entry = {"segment": "all", "labels": {}, "max_concurrency": 4, "min_context_tokens": 1,
             "max_context_tokens": 9, "context": "resolved", "loads": []}  # fmt: skip
    assert msgspec.convert(entry, EnvelopeArea).max_rps is None
    row = {"segment": "all", "max_concurrency": 4, "max_context_tokens": 9}
    assert msgspec.convert(row, EnvelopeEntry).limit == LoadLimit(concurrency=4)
    for path in sorted(FIXTURES.glob("*/results.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        for name in ("load_sizes", "clients"):
            stored.pop(name, None)
        loaded = msgspec.convert(stored, Results, dec_hook=read_reference)
        assert [size.concurrency for size in loaded.sizes.values()] == [count for _, count in loaded.loads]


def test_a_run_without_open_loops_says_that_it_measured_none():
    """What is not measured follows from the levels: arrivals, or the knee alone."""
    only_closed = compute_results(make_run((("one", 1),))).not_measured
    with_rates = compute_results(make_run((("low", STEADY),))).not_measured
    assert any(text.startswith("Open-loop arrivals") for text in only_closed)
    assert not any(text.startswith("Open-loop arrivals") for text in with_rates)
    assert any(text.startswith("Bursts: no load level") for text in with_rates)
