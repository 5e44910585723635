"""Every plan that the program writes has enough blocks for a gain to be claimed at its loads."""

import json

import pytest
from typer.testing import CliRunner

from draftproof.cli.app import app
from draftproof.cli.new_plan import METHODS, Wanted, render_new_plan
from draftproof.measure.run.check import choose_items
from draftproof.plan.load import LoadLevel
from draftproof.plan.loading import load_builtin_plan, load_plan, parse_plan
from draftproof.workload.blocks import ENOUGH_BLOCKS, plan_blocks, size_block

VARIANTS = [(engine, method) for engine, methods in METHODS.items() for method in methods or (None,)]


def count_blocks(plan):
    _, items = choose_items(plan)
    blocks = plan_blocks(items, plan.load, ("baseline", "candidate"), plan.seed, plan.workload.segment_by)
    return {level.name: sum(one.load == level.name for one in blocks) for level in plan.load}


@pytest.mark.parametrize(("engine", "method"), VARIANTS)
def test_a_new_plan_has_six_blocks_at_every_load(engine, method):
    """Six are the fewest with which representative evidence credits a gain."""
    text = render_new_plan(
        Wanted(
            engine=engine,
            method=method,
            model="org/model",
            draft="org/draft" if method in {"draft_model", "eagle3"} else None,
        )
    )
    counts = count_blocks(parse_plan(text))
    assert counts
    assert min(counts.values()) >= ENOUGH_BLOCKS == 6


@pytest.mark.parametrize("name", ["demo", "demo-quick"])
def test_a_demo_has_six_blocks_at_every_load(name):
    """What the demo shows of periods is what a plan of one's own would."""
    counts = count_blocks(parse_plan(load_builtin_plan(name)[1]))
    assert min(counts.values()) >= ENOUGH_BLOCKS


@pytest.mark.parametrize(("requests", "blocks"), [(60, 6), (3000, 24)])
def test_a_plan_over_a_recording_has_six_blocks_of_at_most_128_requests(tmp_path, requests, blocks):
    """A short recording is cut into six windows, a long one into windows that hold its bursts."""
    trace, out = tmp_path / "t.jsonl", tmp_path / "plan.toml"
    lines = ({"at_s": n / 10, "prompt_tokens": 20, "output_tokens": 5} for n in range(requests))
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(
        app, ["init", "--engine", "reference", "--trace", str(trace), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert count_blocks(load_plan(out)[0]) == {"recorded": blocks}


@pytest.mark.parametrize(
    ("asked", "repeats", "size", "wanted"),
    [
        (48, 1, None, 8),
        (480, 1, None, 8),
        (20, 1, None, 3),
        (5, 1, None, 1),
        (20, 3, None, 8),
        (20, 1, 20, 20),
    ],
)
def test_a_level_without_a_block_size_has_six_blocks(asked, repeats, size, wanted):
    """Eight items a block, or so many fewer that there are six over all repeats; a stated size stands."""
    level = LoadLevel.model_validate({"name": "l", "concurrency": 1, "repeats": repeats, "block_size": size})
    assert size_block(level, asked) == wanted
    if size is None and asked >= ENOUGH_BLOCKS:
        assert repeats * -(-asked // wanted) >= ENOUGH_BLOCKS
