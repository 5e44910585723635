"""`draftproof compare` as a user calls it: exit codes, JSON, refusals, a service that begins to bundle."""

import json

import msgspec
import pytest
from tests.builders.records import (
    MS_NS,
    build_arm_manifest,
    build_block_record,
    build_contract,
    build_item,
    build_manifest,
    build_record,
)

from draftproof.core.records import SpecCounts
from draftproof.judge.compare import RunComparison
from draftproof.plan.loading import parse_plan, plan_sha256, thresholds_sha256
from draftproof.store import RunDirectory

PLAN = (
    'name = "api"\n[[load]]\nname = "single"\nconcurrency = 1\n'
    '[arms.baseline]\nengine = "generic"\nurl = "https://api.example/v1"\n'
    '[arms.candidate]\nengine = "generic"\nurl = "https://api.example/v1"\n'
    "[comparison]\nresamples = 200\n[thresholds]\nfailure_margin = 1.0\nquality_margin = 1.0\n"
)
ARMS = ("baseline", "candidate", "baseline_null")
ITEMS = [build_item(f"item-{number}") for number in range(8)]
ANSWER_TOKENS = 41


def store_run(path, *, tokens_per_chunk=1, items=ITEMS, counts=None, **manifest):
    """Write a run of an API that discloses nothing; its candidate sends so many tokens at a time."""
    plan = parse_plan(PLAN)
    url = "https://api.example/v1"
    made = build_manifest(
        plan_sha256=plan_sha256(PLAN),
        thresholds_sha256=thresholds_sha256(plan),
        arms=tuple(
            build_arm_manifest(arm=arm, engine="generic", engine_version="unknown", url=url) for arm in ARMS
        ),
        contracts=tuple(build_contract(arm=arm, algorithm="undisclosed", confounds=()) for arm in ARMS),
    )
    with RunDirectory.create(path, PLAN, plan, msgspec.structs.replace(made, **manifest), items) as run:
        for arm in ARMS:
            size = tokens_per_chunk if arm == "candidate" else 1
            for item in items:
                run.journal.append(
                    build_record(
                        arm=arm,
                        load="single",
                        item_id=item.id,
                        tokens_per_chunk=(1,) + (size,) * ((ANSWER_TOKENS - 1) // size),
                        gap_ns=20 * size * MS_NS,
                        speculation=counts if arm == "candidate" else None,
                    )
                )
            run.journal.append(build_block_record(arm=arm, load="single"))
    return path


def test_the_same_run_has_not_changed(tmp_path, call):
    """Exit code 0, one headline, nothing on standard error, nothing written."""
    run = store_run(tmp_path / "a")
    before = sorted(path.name for path in run.iterdir())
    code, out, err = call("compare", run, run)
    assert (code, err) == (0, "")
    assert out.startswith("UNCHANGED")
    assert sorted(path.name for path in run.iterdir()) == before


def test_an_api_that_begins_to_bundle_is_found(tmp_path, call):
    """The same plan a month later: the delivery changed, exit code 10, and --json holds the same."""
    runs = store_run(tmp_path / "a"), store_run(tmp_path / "b", tokens_per_chunk=4)
    code, out, _ = call("compare", *runs)
    assert code == 10
    assert "the delivery changed: 3.73 tokens per chunk where there were 1.00" in " ".join(out.split())
    code, out, err = call("compare", *runs, "--json")
    assert (code, err) == (10, "")
    found = msgspec.json.decode(out, type=RunComparison)
    assert found.conclusion == "changed"
    assert found.facts == ()
    arm = json.loads(out)["arms"][1]
    assert (arm["arm"], arm["undisclosed"]) == ("candidate", True)
    assert {name: arm["triggers"][name] for name in ("version", "model_hash", "drafter_hash", "flags")} == {
        "version": None, "model_hash": None, "drafter_hash": False, "flags": False
    }  # fmt: skip
    assert True not in arm["triggers"].values()
    assert call("compare", *runs, "--arm", "baseline")[0] == 0


def test_a_changed_configuration_alone_is_a_change(tmp_path, call):
    """Equal delivery on another host: exit code 10, and the host is named."""
    runs = store_run(tmp_path / "a"), store_run(tmp_path / "b", host={"cpus": 3})
    code, out, _ = call("compare", *runs)
    assert code == 10
    assert "host: cpus" in out


@pytest.mark.parametrize("place", [0, 1])
def test_an_invalid_run_among_them_exits_with_40(tmp_path, call, place):
    """A candidate that never drafts makes its run invalid, whichever of the two it is."""
    idle = store_run(tmp_path / "idle", counts=SpecCounts(0, 0, 0))
    runs = [store_run(tmp_path / "good")]
    runs.insert(place, idle)
    code, out, _ = call("compare", *runs)
    assert code == 40
    assert f"Run {'AB'[place]} is invalid" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--arm", "alternative"), "'alternative' is not in run A and B"),
        (("other",), "different workloads and no prompt in common"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(tmp_path, call, arguments, words):
    """Usage errors exit with 2, one line on standard error, nothing on standard output."""
    run = store_run(tmp_path / "a")
    second = run
    if arguments == ("other",):
        items = [build_item(f"new-{number}") for number in range(8)]
        second, arguments = store_run(tmp_path / "b", items=items, workload_sha256="3" * 64), ()
    code, out, err = call("compare", run, second, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_doctored_plan_makes_its_run_invalid(tmp_path, call):
    """A run whose thresholds were changed after the fact is refused by name with exit code 40."""
    runs = store_run(tmp_path / "a"), store_run(tmp_path / "b")
    plan = runs[1] / "plan.toml"
    plan.write_text(plan.read_text().replace("failure_margin = 1.0", "failure_margin = 0.9"))
    code, _, err = call("compare", *runs)
    assert code == 40
    assert str(plan) in err


def test_results_on_disk_are_not_trusted(tmp_path, call):
    """A results.json that claims something else changes nothing."""
    runs = store_run(tmp_path / "a"), store_run(tmp_path / "b", tokens_per_chunk=4)
    honest = call("compare", *runs)
    (runs[1] / "results.json").write_text('{"verdict": "adopt"}')
    assert call("compare", *runs) == honest


def test_two_real_runs_of_one_plan_show_the_service_that_bundles(stage, call):
    """The same plan and command twice: the candidate sends four tokens a chunk where it sent one."""
    options = stage.folder / "options.txt"
    runs = stage.folder / "first", stage.folder / "second"
    for run, size in zip(runs, (1, 4), strict=True):
        options.write_text(f"--tokens-per-chunk\n{size}\n")
        stage.out = run
        stage.run(baseline=(), candidate=(f"@{options}",))
    code, out, err = call("compare", *runs, "--json")
    assert code == 10, err
    found = msgspec.json.decode(out, type=RunComparison)
    rows = {(one.arm, one.quantity): one for one in found.deliveries}
    assert rows["candidate", "tokens_per_chunk"].ratio.value == pytest.approx(3.0)
    assert rows["candidate", "tokens_per_chunk"].reading == "changed_noise_unknown"
    assert rows["baseline", "tokens_per_chunk"].reading == "within_noise"
    assert {arm.arm: arm.undisclosed for arm in found.arms} == {"baseline": True, "candidate": True}
    assert found.facts == ()
    stage.assert_no_orphans()
