"""New plans over a trace whose units its file does not say."""

import pytest
from typer.testing import CliRunner

from draftproof.cli.app import app
from draftproof.measure.run.check import choose_items
from draftproof.plan.loading import load_plan

ROW = '{{"timestamp": {}, "input_length": 955, "output_length": 52, "hash_ids": [46, 47]}}\n'


def initialise(folder, *options):
    trace = folder / "t.jsonl"
    trace.write_text(ROW.format(0) + ROW.format(3000))
    out = folder / "plan.toml"
    return out, CliRunner().invoke(
        app, ["init", "--engine", "reference", "--trace", str(trace), "--out", str(out), *options]
    )


def test_units_of_the_command_line_are_those_of_the_plan(tmp_path):
    """The plan that is written reads the trace: 3,000 ms, blocks of 512 tokens."""
    out, done = initialise(tmp_path, "--timestamp-unit", "ms", "--block-tokens", "512")
    assert done.exit_code == 0, done.output
    plan, _ = load_plan(out)
    assert (plan.workload.timestamp_unit, plan.workload.block_tokens) == ("ms", 512)
    _, items = choose_items(plan)
    assert [item.due_ns for item in items] == [0, 3_000_000_000]


@pytest.mark.parametrize(
    ("options", "said"),
    [((), "init: --timestamp-unit"), (("--timestamp-unit", "h"), "--timestamp-unit: is 'h'")],
)
def test_no_plan_is_written_with_an_unknown_unit(tmp_path, options, said):
    """One sentence names the option, and nothing is left behind."""
    out, refused = initialise(tmp_path, *options)
    assert said in str(refused.exception)
    assert not out.exists()


def test_units_without_a_trace_are_refused(tmp_path):
    """An option that has no effect is no option."""
    refused = CliRunner().invoke(
        app, ["init", "--engine", "reference", "--block-tokens", "16", "--out", str(tmp_path / "p.toml")]
    )
    assert "name it with --trace" in str(refused.exception)
