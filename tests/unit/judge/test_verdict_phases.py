"""How arms got to their steady state: rows of known phases, and warm-ups that did not get there."""

import msgspec
import pytest
from tests.builders.records import MS_NS

from draftproof.core.manifests import ColdStart
from draftproof.core.records import Warmup, WarmupGroup
from draftproof.judge.compute import compute_results
from draftproof.judge.inform.clients import summarise_phases, warn_about_warmups
from draftproof.judge.observe.run_data import prepare_run
from draftproof.store.run_directory import encode_document

SMALL = {"segments": ("chat",), "loads": (("low", 1),), "items_per_segment": 8}


def warmup(**changes):
    one = Warmup(
        arm="candidate",
        load="low",
        block=0,
        start=1,
        started_ns=0,
        ended_ns=4_000 * MS_NS,
        stable=True,
        tolerance=0.1,
        change=0.04,
        groups=(
            WarmupGroup(requests=2, answered=2, ttft_ns=400.0 * MS_NS),
            WarmupGroup(requests=2, answered=2, ttft_ns=100.0 * MS_NS),
        ),
    )
    return msgspec.structs.replace(one, **changes)


@pytest.fixture(scope="module")
def run(world):
    return world(**SMALL).run()


def row(run, arm="candidate", **changes):
    prepared = prepare_run(msgspec.structs.replace(run, **changes))
    return next(one for one in summarise_phases(prepared) if one.arm == arm)


def test_a_run_that_says_nothing_of_its_phases_has_rows_without_figures(run):
    """None and no warning: an older run was not badly warmed up, it did not say."""
    told = row(run)
    assert (told.warmups, told.warmup_requests, told.periods) == (0, 0, 0)
    assert (told.warmup_s, told.warmup_change, told.ramp_ns, told.steady_ns, told.drain_ns) == (None,) * 5
    assert told.warm_ttft_ns is not None
    assert not any("warm-up" in text for text in compute_results(run).warnings)


def test_cold_and_warm_first_tokens_stand_apart(run):
    """That of the first request after the start, and the median of the counted ones."""
    cold = ColdStart(outcome="ok", ttft_ns=1_234 * MS_NS, e2e_ns=2_000 * MS_NS)
    manifest = msgspec.structs.replace(
        run.manifest,
        arms=tuple(msgspec.structs.replace(one, cold=cold, load_time_s=9.5) for one in run.manifest.arms),
    )
    told = row(run, manifest=manifest)
    assert (told.cold_ttft_ns, told.load_time_s) == (1_234 * MS_NS, 9.5)
    ttfts = sorted(
        one.chunks[0].arrival_ns - one.sent_ns
        for one in run.records
        if one.arm == "candidate" and one.phase == "measure"
    )
    middle = len(ttfts) // 2
    assert told.warm_ttft_ns in {(ttfts[middle - 1] + ttfts[middle]) / 2, ttfts[middle]}


def test_warm_ups_of_several_starts_are_summed_up(run):
    """Seconds add up, the worst last change stands, medians of the first and the last group beside it."""
    told = row(run, warmups=(warmup(), warmup(block=1, start=2, stable=False, change=0.3)))
    assert (told.warmups, told.warmups_stable, told.warmup_s, told.warmup_change) == (2, 1, 8.0, 0.3)
    assert (told.warmup_first_ttft_ns, told.warmup_last_ttft_ns) == (400 * MS_NS, 100 * MS_NS)
    assert row(run, "baseline", warmups=(warmup(),)).warmups == 0


def test_the_phases_of_periods_are_taken_from_those_that_ended_in_one_piece(run):
    """A resumed period is two records of the same period: what lies between them is no phase."""
    blocks = tuple(
        msgspec.structs.replace(one, counted_from_ns=one.started_ns + 5 * MS_NS) for one in run.blocks
    )
    own = [one for one in blocks if one.arm == "candidate"]
    told = row(run, blocks=blocks)
    assert (told.periods, told.ramp_ns) == (len(own), 5 * MS_NS)
    assert told.steady_ns is not None
    broken = msgspec.structs.replace(own[0], completed=False)
    assert row(run, blocks=(*blocks, broken)).periods == len(own) - 1


def test_a_warm_up_that_did_not_become_stable_is_a_warning_of_the_run(run):
    """One sentence for all of them, with how much, what is allowed and what to do."""
    changed = msgspec.structs.replace(
        run, warmups=(warmup(stable=False, change=0.23), warmup(arm="baseline"))
    )
    (text,) = [one for one in compute_results(changed).warnings if "warm-up" in one]
    assert "candidate at low (4 requests in 4.0 s, last change 23% where 10% is allowed)" in text
    assert "limits.warmup_requests" in text
    assert "baseline" not in text


def test_the_warning_counts_starts_and_says_where_nothing_was_answered():
    """The worst of several stands for them; without two answered groups there is no change."""
    told = [warmup(stable=False, change=0.2), warmup(stable=False, change=0.5, start=2)]
    (text,) = warn_about_warmups([*told, warmup(load="busy", stable=False, change=None)])
    assert "candidate at low (2 times, 4 requests in 4.0 s, last change 50% where 10% is allowed)" in text
    assert "candidate at busy (4 requests in 4.0 s, too few answers to compare)" in text
    assert list(warn_about_warmups([warmup()])) == []


def test_the_order_of_warm_ups_does_not_matter(run):
    """The same bytes whatever the order on disk."""
    told = (warmup(), warmup(block=1, start=2, stable=False, change=0.3), warmup(arm="baseline"))
    results = [compute_results(msgspec.structs.replace(run, warmups=order)) for order in (told, told[::-1])]
    assert encode_document(results[0]) == encode_document(results[1])
