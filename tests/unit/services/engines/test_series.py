"""Sums over Prometheus series."""

import pytest

from draftproof.judge.metrics.telemetry import gain_of, read_mean, read_sum
from draftproof.services.engines.values import (
    first_sum,
    list_facts,
    parse_series,
    sum_by_label,
    sum_parts,
    sum_series,
)

VALUES = {
    'a_total{kind="x",model="m"}': 2.0,
    'a_total{kind="y",model="m"}': 3.0,
    "b": 7.0,
    'c{text="a\\"b,{}=\\\\"}': 1.0,
}


def test_labels_survive_quotes_commas_and_braces():
    """A label's value is read back as it was, whatever signs it holds."""
    assert parse_series('c{text="a\\"b,{}=\\\\"}') == ("c", {"text": 'a"b,{}=\\'})
    assert parse_series("b") == ("b", {})


def test_a_name_is_summed_over_the_labels_that_are_not_asked_for():
    """Without labels all series of the name count, with labels those that have them; absent is None."""
    assert sum_series(VALUES, "a_total") == 5.0
    assert sum_series(VALUES, 'a_total{kind="x"}') == 2.0
    assert sum_series(VALUES, 'a_total{kind="z"}') is None
    # A counter's `_total` is the parser's where the service leaves it out, so it may be there or not.
    assert sum_series(VALUES, "a") == 5.0
    assert sum_series(VALUES, "a_tot") is None


def test_of_several_names_the_first_that_is_there_counts_and_parts_are_added():
    """Alternatives are not added to each other; parts are."""
    assert first_sum(VALUES, ("gone", "b", "a_total")) == 7.0
    assert sum_parts(VALUES, ("gone", "b", "a_total")) == 12.0
    assert first_sum(VALUES, ("gone",)) is None
    assert sum_parts(VALUES, ()) is None


def test_sums_by_a_label():
    """One sum for each value of the label; series without it do not count."""
    assert sum_by_label(VALUES, "a_total", "kind") == {"x": 2.0, "y": 3.0}
    assert sum_by_label(VALUES, "b", "kind") == {}


def rank(name, value, **labels):
    inner = ",".join(f'{key}="{label}"' for key, label in sorted(labels.items()))
    return {f"{name}{{{inner}}}": value}


TENSOR = {
    series: value
    for tp in range(8)
    for series, value in rank("sglang:num_running_reqs", 2.0, tp_rank=tp).items()
}


@pytest.mark.parametrize("name", ["tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank"])
def test_replicas_of_one_fact_are_taken_once(name):
    """Eight ranks that work on the same two requests state two requests, whatever they are called."""
    values = {series.replace("tp_rank", name): value for series, value in TENSOR.items()}
    assert sum_series(values, "sglang:num_running_reqs") == 2.0
    assert list_facts(values, "sglang:num_running_reqs") == [2.0]


@pytest.mark.parametrize("name", ["dp_rank", "engine"])
def test_shards_of_work_are_added_up(name):
    """Data-parallel ranks and engines have requests of their own, each in several replicas."""
    values: dict[str, float] = {}
    for shard in range(2):
        for tp in range(4):
            values |= rank("running", 1.0 + shard, tp_rank=tp, **{name: shard})
    assert sum_series(values, "running") == 3.0


def test_replicas_that_were_read_a_moment_apart_are_the_latest():
    """A counter that one rank has raised already counts as raised."""
    values = rank("a_total", 7.0, tp_rank=0) | rank("a_total", 8.0, tp_rank=1)
    assert sum_series(values, "a_total") == 8.0
    assert sum_by_label(values | rank("a_total", 9.0, tp_rank=0, position=0), "a_total", "position") == {
        "0": 9.0
    }


def test_the_parts_of_a_stated_total_are_not_added_to_it():
    """A total under an empty priority beside the priorities is the sum of them already."""
    values = rank("queue", 5.0, priority="") | rank("queue", 3.0, priority=1) | rank("queue", 2.0, priority=2)
    assert sum_series(values, "queue") == 5.0
    assert sum_series({key: value for key, value in values.items() if '""' not in key}, "queue") == 5.0


def test_every_quantity_of_a_service_is_read_so():
    """Gauges, their means, gains of counters and gains by position take replicas once."""
    sample = TENSOR | {f'a_total{{position="0",tp_rank="{tp}"}}': 4.0 for tp in range(8)}
    assert read_sum(("sglang:num_running_reqs",))(sample) == 2.0
    assert read_mean(("sglang:num_running_reqs",))(sample) == 2.0
    assert gain_of({}, sample, ("a_total",)) == 4.0
    assert sum_by_label(sample, "a_total", "position") == {"0": 4.0}
