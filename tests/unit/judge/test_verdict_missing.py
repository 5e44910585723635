"""What is missing for an answer: one computation, said alike by check, verdict and samples, largest first."""

import msgspec
import pytest

from draftproof.core.records import Chunk
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.samples import default_question, plan_samples
from draftproof.judge.decide.spreads import list_before_a_run, list_obstacles, read_earlier
from draftproof.judge.observe.pairs import pair_observations
from draftproof.judge.observe.run_data import prepare_run


def plan_of(run, *, earlier=False):
    known = read_earlier(prepare_run(run)) if earlier else None
    return plan_samples(run.plan, run.items, default_question(run.plan), known)


def list_ruled_out(run):
    """Return what `check` says rules an adoption out."""
    found = plan_of(run)
    cells = [(need.segment, need.load) for need in found.needs if need.aim == "gain"]
    return [one.text for one in list_before_a_run(found, cells)[0]]


def without_counts(run):
    """Return a run whose service says nothing of tokens."""
    records = (
        msgspec.structs.replace(
            one,
            chunks=tuple(Chunk(chunk.arrival_ns, None) for chunk in one.chunks),
            token_source=None,
            output_tokens=None,
            token_ids=None,
        )
        for one in run.records
    )
    return msgspec.structs.replace(run, records=tuple(records))


def slightly_faster(case):
    return 18.0 if case.arm == "candidate" else 20.0


@pytest.mark.parametrize("items", [4, 8, 20])
def test_the_verdict_asks_for_what_samples_asks_for(world, items):
    """A cell that is too noisy needs the number of prompts that `samples --run` gives of the same run."""
    run = world(tpot_ms=slightly_faster, noise=0.25, items_per_segment=items).run()
    results = compute_results(run)
    needs = [one for one in plan_of(run, earlier=True).needs if one.more and one.aim != "tail"]
    assert results.verdict.decision == "inconclusive"
    largest = max(one.more for one in needs)
    assert f"About {largest:,} more prompts" in results.verdict.sentence
    gains = {(one.segment, one.load): one.more for one in needs if one.aim == "gain"}
    for cell in results.cells:
        if cell.status == "inconclusive":
            assert cell.effect.needed == gains.get((cell.segment, cell.load))


def test_what_no_prompts_mend_is_said_first(world):
    """Without a check no gain is ever claimed: the verdict, check and samples say that before any number."""
    run = world(tpot_ms=slightly_faster, has_checks=False, comparison={"quality": "checks"}).run()
    said = "No item has a check"
    assert said in compute_results(run).verdict.sentence
    assert plan_of(run, earlier=True).sentence.startswith(said)
    assert list_ruled_out(run)[0].startswith(said)


def test_a_plan_with_enough_is_ready(world):
    """Nothing stands in the way of a plan that has enough of everything at best."""
    assert list_ruled_out(world().run()) == []


def test_a_metric_that_no_request_shows_is_not_asked_for_more(world):
    """Where no answer has counts, more prompts change nothing, at 12 as at 48: the remedy is said instead."""
    for items in (12, 48):
        run = without_counts(world(items_per_segment=items).run())
        found = plan_of(run, earlier=True)
        cells = [(one.segment, one.load) for one in found.needs if one.aim == "gain"]
        text = list_obstacles(found, cells)[0].text
        assert text.startswith("No number of prompts would show")
        assert "name a tokenizer" in text
        assert "more prompts" not in compute_results(run).verdict.sentence


def test_the_pairs_of_a_run_are_read_once_or_twice_alike(world):
    """Pairs that are known already give the same spreads as those read anew."""
    prepared = prepare_run(world(noise=0.1).run())
    known, anew = read_earlier(prepared, pair_observations(prepared)), read_earlier(prepared)
    assert known.null_differences == anew.null_differences
    assert len(known.pairs) == len(anew.pairs)
