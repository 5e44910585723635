"""Arms that are started anew between blocks: services whose speed is drawn at each start."""

import math
import statistics
import sys
from collections import defaultdict
from itertools import pairwise

from draftproof.core.errors import EngineError
from draftproof.store import RunDirectory

DRAFTING = ("--acceptance", "active", "--tokens-per-chunk", "2")
# Milliseconds between chunks of the first start (which is checked and measured), of the second, and so on.
LUCK = {"baseline": (8, 4, 6), "candidate": (4, 8, 6)}


def lucky(stage, arm: str, *options: str, gaps_ms) -> list[str]:
    """The scripted server behind a shell: at each start it takes the next line of a file as its gap."""
    drawn, count = stage.folder / f"{arm}.gaps", stage.folder / f"{arm}.starts"
    drawn.write_text("".join(f"{gap}\n" for gap in gaps_ms))
    server = " ".join((sys.executable, "-m tests.builders.serve_script --port $0", *options))
    take = f'echo x >>{count}; gap=$(sed -n "$(wc -l <{count})p" {drawn})'
    return ["sh", "-c", f'{take}; exec {server} --gap-ms "${{gap:-no more starts}}"', "{port}"]


def plan_restarts(stage, restarts, *, candidate_ms=LUCK["candidate"], **plan):
    """Write a plan that states how often its arms are started anew."""
    arms = {
        "baseline": lucky(stage, "baseline", gaps_ms=LUCK["baseline"]),
        "candidate": lucky(stage, "candidate", *DRAFTING, gaps_ms=candidate_ms),
    }
    path = stage.plan(**arms | plan)
    path.write_text(path.read_text().replace("stop_s =", f"restarts = {restarts}\nstop_s =", 1))
    return path


def speeds(out) -> dict[tuple[str, int], float]:
    """Return the median gap between chunks, in ms, by arm and process."""
    contents = RunDirectory.open(out).load()
    process = {(one.block, one.arm): one.process or 0 for one in contents.blocks}
    found = defaultdict(list)
    for one in contents.records:
        if one.phase == "measure" and one.outcome == "ok":
            times = [chunk.arrival_ns for chunk in one.chunks]
            gaps = [(after - before) / 1e6 for before, after in pairwise(times)]
            found[one.arm, process[one.block, one.arm]].append(statistics.median(gaps))
    return {key: statistics.median(values) for key, values in found.items()}


def test_every_process_answers_its_blocks_and_is_known_by_its_number(stage, call):
    """Two restarts over six blocks: three processes of each arm, each at the speed of its own start."""
    stage.write_items(12)
    code, _, err = call("run", plan_restarts(stage, 2, block_size=2), "--out", stage.out, "--quiet")
    assert code in {0, 10, 20, 30}, err
    stage.assert_no_orphans()
    found = speeds(stage.out)
    assert set(found) == {(arm, number) for arm in LUCK for number in (1, 2, 3)}
    for (arm, number), gap_ms in found.items():
        assert math.isclose(gap_ms, LUCK[arm][number - 1], rel_tol=0.4)
    contents = RunDirectory.open(stage.out).load()
    blocks = defaultdict(set)
    for one in contents.blocks:
        blocks[one.arm, one.process].add(one.block)
    assert {len(own) for own in blocks.values()} == {2}
    assert {(one.arm, one.start) for one in contents.warmups} == set(found)
    assert {record["outcome"] for record in stage.measured()} == {"ok"}


def test_a_resumed_run_counts_the_starts_on(stage, call):
    """A process that does not come up ends the run by name; the next part's processes have new numbers."""
    stage.write_items(8)
    plan = plan_restarts(stage, 1, block_size=2, candidate_ms=(4,))
    code, _, err = call("run", plan, "--out", stage.out, "--quiet")
    assert code == EngineError.exit_code
    assert "arm candidate ended with exit code 2" in err
    assert f"draftproof run --resume {stage.out}" in err
    assert "limits.restarts = 0" in err
    stage.assert_no_orphans()
    (stage.folder / "candidate.gaps").write_text("4\n4\n4\n4\n4\n")
    (stage.folder / "baseline.gaps").write_text("4\n4\n4\n4\n4\n")
    stage.resume()
    stage.assert_no_orphans()
    numbers = sorted({one.process or 0 for one in RunDirectory.open(stage.out).load().blocks})
    assert numbers[0] == 1
    assert len(numbers) >= 2
    assert len(stage.measured()) == 16


def test_short_runs_keep_their_processes_by_default(stage):
    """With limits.restarts = "auto" a run of a second has no quarter to spend on starts."""
    results = stage.run(baseline=("--gap-ms", "2"), candidate=(*DRAFTING, "--gap-ms", "2"))
    assert results.counts["measured"] == 16
    assert {one.process for one in RunDirectory.open(stage.out).load().blocks} == {1}
