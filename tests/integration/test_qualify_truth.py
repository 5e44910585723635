"""Whole runs against services of known timing: what is true must come out, the same anywhere."""

import random
import shutil

from draftproof.cli.live import describe_analysis
from draftproof.measure.run.reporting import recompute

FAST = ("--acceptance", "active", "--tokens-per-chunk", "2")
SLOW = ("--acceptance", "active", "--tokens-per-chunk", "2", "--gap-ms", "20")


def test_two_tokens_a_step_at_the_same_gap_are_a_gain(stage):
    """A candidate that delivers twice the tokens at the same gap halves the time per token and is adopted."""
    results = stage.run(baseline=("--gap-ms", "10"), candidate=(*FAST, "--gap-ms", "10"), block_size=2)
    (cell,) = results.cells
    assert cell.status == "gain"
    assert 0.3 < cell.effect.value < 0.8
    assert results.verdict.decision == "adopt"
    assert results.counts["measured"] == 16
    stage.assert_no_orphans()


def test_arms_of_the_same_timing_are_no_gain(stage):
    """Where both arms deliver the same tokens at the same gap, no gain is reported and nothing adopted."""
    results = stage.run(baseline=("--tokens-per-chunk", "2"), candidate=FAST)
    (cell,) = results.cells
    assert cell.status != "gain"
    assert results.verdict.decision in {"defer", "inconclusive"}


def test_a_slower_candidate_is_harm_and_is_deferred(stage):
    """A candidate whose steps take five times as long and yield twice the tokens does harm."""
    results = stage.run(candidate=SLOW)
    (cell,) = results.cells
    assert cell.status == "harm"
    assert cell.effect.value > 1.5
    assert results.verdict.decision == "defer"


def test_report_depends_on_the_records_alone(stage, tmp_path):
    """A copy elsewhere, and a copy with shuffled journal lines, give results and report byte for byte."""
    stage.run(candidate=FAST)
    wanted = {name: (stage.out / name).read_bytes() for name in ("results.json", "report.html")}
    assert all(wanted.values())
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(stage.out, copy)
    for name in wanted:
        (copy / name).unlink()
    recompute(copy, write=True)
    assert {name: (copy / name).read_bytes() for name in wanted} == wanted
    journal = copy / "journal" / "records.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    random.Random(7).shuffle(lines)  # noqa: S311 - a fixed disorder
    journal.write_bytes(b"".join(lines))
    recompute(copy, write=True)
    assert {name: (copy / name).read_bytes() for name in wanted} == wanted


def test_a_sequential_run_ends_where_it_knows(stage, tmp_path):
    """Of twelve blocks a gain of a half takes six; a copy says the same, and nothing is left to resume."""
    stage.write_items(24)
    results = stage.run(
        baseline=("--gap-ms", "4"), candidate=(*FAST, "--gap-ms", "4"), block_size=2, tables="[sequential]"
    )
    (analysis,) = results.analyses
    assert (analysis.blocks, analysis.planned, analysis.ended) == (6, 12, "settled")
    assert "after 6 of 12 blocks: 1 gain. It ends here" in describe_analysis(analysis)
    assert (results.counts["measured"], results.verdict.decision) == (24, "adopt")
    shutil.copytree(stage.out, tmp_path / "copy")
    assert recompute(tmp_path / "copy", write=True) == results
    assert stage.resume() == results


def test_a_sequential_run_goes_on_while_it_does_not_know(stage):
    """Arms of one speed are no gain and no harm that a few blocks show; the last analysis is the end."""
    stage.write_items(24)
    sequential = "[sequential]\nfutility = 0.0"
    results = stage.run(baseline=("--tokens-per-chunk", "2"), candidate=FAST, tables=sequential)
    assert [one.blocks for one in results.analyses if one.ended is None] in ([4, 5], [4], [])
    assert results.verdict.decision in {"defer", "inconclusive"}
    assert results.counts["measured"] in {2 * 24, 2 * 20, 2 * 16}
