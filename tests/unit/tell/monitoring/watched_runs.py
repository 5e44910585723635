"""Plans and rule files for the tests of what is watched."""

from typing import Any

import pytest
from tests.builders.manifest import build_manifest
from tests.builders.results import build_results

from draftproof.plan.loading import parse_plan
from draftproof.plan.schema import Plan
from draftproof.tell.monitoring import render_rules

ENGINES = ("vllm", "sglang", "tensorrt-llm", "llamacpp", "tgi", "reference")
JOB, HOLDOUT = "spec", "plain"
RESULTS, MANIFEST = build_results(), build_manifest()
ROLLBACK = """
max_ttft_ms = 500
max_tpot_ms = 40
min_acceptance_length = 1.5
"""


def make_plan(engine: str, *, rollback: str = ROLLBACK, approval: str = "", baseline: str = "") -> Plan:
    """A plan with two arms of an engine and with limits for every alert that can have one."""
    return parse_plan(f"""
name = "watched"
[arms.baseline]
engine = "{baseline or engine}"
[arms.candidate]
engine = "{engine}"
served_model = "target"
[[load]]
name = "peak"
concurrency = 8
[rollback]
{rollback}
[approval]
{approval}
""")


def rules_text(plan: Plan, *, holdout: tuple[str, ...] = (HOLDOUT,)) -> str:
    """The rule file of a made-up run under a plan."""
    return render_rules(RESULTS, plan, MANIFEST, jobs=(JOB,), holdout_jobs=holdout)


def parse_rules(text: str) -> list[dict[str, Any]]:
    """The rules of a file, as a YAML reader sees them."""
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra [engine]")
    groups = yaml.safe_load(text)["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts_of(text: str) -> dict[str, dict[str, Any]]:
    """The alerts of a file by name."""
    return {rule["alert"]: rule for rule in parse_rules(text) if "alert" in rule}
