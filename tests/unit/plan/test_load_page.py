"""The page on loads: each of its plans is one, and what it says of labels and lines is so."""

import re
import tomllib
from pathlib import Path

import pytest
from tests.builders.records import build_item

from draftproof.measure.run.load_findings import find_load_findings
from draftproof.plan.loading import parse_plan, render_plan
from draftproof.workload.moments import Units
from draftproof.workload.reader import load_workload

PAGE = (Path(__file__).parents[3] / "docs" / "load.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ARMS = """
[arms.baseline]
[arms.candidate]
settings = { "speculation.method" = "ngram" }
"""
LINES = re.findall(r"^(\{.*\})$", PAGE, re.MULTILINE)
TRACES = [
    row.split("|")[2].strip()
    for row in PAGE.splitlines()
    if re.match(r"\| (Azure|Burst|Qwen|Moon|draftp)", row)
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_is_a_plan(text):
    """With a name and arms each example is valid, and reads back as what it says."""
    plan = parse_plan(f'name = "example"\n{text}{ARMS}')
    assert parse_plan(render_plan(plan)) == plan
    assert [level.name for level in plan.load] == [level["name"] for level in tomllib.loads(text)["load"]]


def test_the_examples_of_shapes_have_as_many_requests_as_their_shapes_take():
    """No level of the page is warned of with a block of items; with too few each is."""
    (text,) = [text for text in EXAMPLES if "load.arrivals.ramp" in text]
    plan = parse_plan(f'name = "example"\n{text}{ARMS}')
    items = tuple(build_item(f"i{number:03}") for number in range(180))
    for level in plan.load:
        alone = plan.model_copy(update={"load": (level,)})
        assert "shape_cut" not in {one.code for one in find_load_findings(alone, items[: level.block_size])}
    found = [one.code for one in find_load_findings(plan, items[:47])]
    assert found.count("shape_cut") == 3


def test_the_example_lines_are_recorded_requests(tmp_path):
    """Each line of the page is read with its time."""
    assert len(LINES) == 2
    for line in LINES:
        path = tmp_path / "log.jsonl"
        path.write_text(line + "\n", encoding="utf-8")
        assert load_workload(path).items[0].due_ns == 0


@pytest.mark.parametrize("cell", TRACES)
def test_the_example_traces_are_read(tmp_path, cell):
    """The first lines of each form are a trace of one request."""
    path = tmp_path / "trace.txt"
    path.write_text("\n".join(re.findall(r"`(.*?)`", cell)) + "\n")
    units = Units(timestamp="ms") if '"input_length": 955' in cell else None
    (item,) = load_workload(path, units=units).items
    assert item.segments["prompts"] == "filler"


def test_the_page_has_all_forms_of_traces():
    """Five forms, each with its example."""
    assert len(TRACES) == 5
