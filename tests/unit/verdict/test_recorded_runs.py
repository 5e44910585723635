"""Runs that real engines left behind, read and judged again.

They lie in tests/fixtures/runs, compacted by scripts/keep_run.py from what scripts/live-engines measured.
After a change of the method that is meant, `draftproof report tests/fixtures/runs/NAME` writes their results
anew.
"""

from pathlib import Path

import msgspec
import pytest

from draftproof.engines import adapter_for
from draftproof.qualify import recompute
from draftproof.store import RunDirectory
from draftproof.verdict.evidence import find_evidence, list_references
from draftproof.verdict.results import Results

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"
NAMES = sorted(path.name for path in RUNS.glob("*") if path.is_dir())


@pytest.fixture(scope="module", params=NAMES)
def judged(request) -> tuple[RunDirectory, Results]:
    """A recorded run and what is computed from it now."""
    folder = RUNS / request.param
    return RunDirectory.open(folder), recompute(folder, write=False)


def test_there_are_runs_of_both_live_engines():
    """n-gram lookup on vLLM and on llama.cpp, and a draft model on vLLM."""
    assert NAMES == ["llamacpp-ngram", "vllm-draft-model", "vllm-ngram"]


def test_a_recorded_run_is_judged_to_the_same_bytes(judged):
    """Another machine, another day: the same results."""
    run, results = judged
    kept = (run.path / "results.json").read_bytes()
    assert msgspec.json.format(msgspec.json.encode(results, order="sorted"), indent=1) + b"\n" == kept


def test_the_candidate_drafted_and_the_baseline_did_not(judged):
    """What the check before the run proved holds for every record of it."""
    run, _ = judged
    records = [one for one in run.load().records if one.outcome == "ok"]
    drafted = dict.fromkeys(("baseline", "candidate"), 0)
    for one in records:
        if one.arm in drafted and one.speculation is not None:
            drafted[one.arm] += one.speculation.num_draft_tokens
    assert drafted["baseline"] == 0
    assert drafted["candidate"] > 0


def test_client_and_service_agree_or_the_difference_is_explained(judged):
    """Tokens, drafts and steps of both sides: equal, close, or explained by what was broken off or cut."""
    _, results = judged
    rows = results.service_agreements
    assert rows
    assert [(row.arm, row.load, row.quantity) for row in rows if row.standing == "differs"] == []


def test_the_release_was_checked(judged):
    """The manifest names a release that the adapter knows."""
    run, _ = judged
    for arm in run.load_manifest().arms:
        assert adapter_for(arm.engine).facts.find_release(arm.engine_version) is not None


def test_greedy_agreement_is_told_beside_the_null(judged):
    """Neither equal nor a fault: how often outputs differ is told, and whether equal arms do as well."""
    _, results = judged
    against = {(one.arm, one.load): one for one in results.agreements if one.versus == "baseline"}
    for load, _ in results.loads:
        assert against["candidate", load].compared > 0
        assert against["baseline_null", load].compared > 0
        assert against["candidate", load].statement


def test_a_recorded_run_says_what_rival_estimators_would_have_made_of_it(judged):
    """Raw gaps of bundled steps read slower in every cell; dividing the gaps of single tokens deceives."""
    run, results = judged
    rivals = {one.estimator: one for one in results.rival_verdicts}
    own = {(cell.segment, cell.load): cell.effect.value for cell in results.cells}
    gaps = {(cell.segment, cell.load): cell.ratio for cell in rivals["chunk_gap"].cells}
    if run.load_manifest().arms[0].engine == "llamacpp":
        assert gaps == own
        minimum = 1 - results.thresholds["minimum_gain"]
        assert all(cell.high < minimum for cell in rivals["gap_over_run_acceptance"].cells)
        assert sum(value > 1 for value in own.values()) == len(own) - 1
    else:
        assert all(gaps[key] > own[key] for key in own)
        assert rivals["chunk_gap"].decision == "defer"


def test_every_reference_leads_to_a_row(judged):
    """Reasons, guardrails and answers to the review questions rest on rows that the run has."""
    run, results = judged
    contents = run.load()
    for reference in set(list_references(results)):
        assert find_evidence(results, reference, manifest=contents.manifest, plan=contents.plan), reference
