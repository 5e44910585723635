"""Step costs of the reference engine with the demo's model: its rounds tell drafting from checking."""

import pytest

from draftproof.explore import CostGrid, measure_costs
from draftproof.measure.run.progress import Progress
from draftproof.plan.loading import parse_plan
from draftproof.reference.weights.fetch import resolve_model

PLAN = """\
name = "live"
[[load]]
name = "single"
concurrency = 1
[arms.baseline]
[arms.candidate.settings]
"speculation.method" = "attached"
num_threads = 1
[limits]
request_s = 600.0
"""


@pytest.mark.live
def test_the_reference_engine_tells_what_each_step_drafted_and_took(tmp_path):
    """Full rounds at each batch size, drafting above zero, parts that add up to the step."""
    plan = parse_plan(PLAN)
    grid = CostGrid(draft_lengths=(3,), batches=(1, 2), repeats=3, answer_tokens=40)
    costs = measure_costs(
        plan, PLAN, tmp_path / "costs", grid=grid, resolve_model=resolve_model, progress=Progress()
    )
    steps = {(one.draft_length, one.batch): one for one in costs.steps}
    assert set(steps) == {(0, 1), (0, 2), (3, 1), (3, 2)}
    for split in costs.splits:
        parts = [split.ordinary_ns.value, split.verification_ns.value, split.draft_ns.value]
        assert split.source == "rounds"
        assert parts[2] is not None
        assert parts[2] > 0
        whole = steps[3, split.batch].step_ns.value
        assert sum(part or 0.0 for part in parts) == pytest.approx(whole, rel=0.1)
