"""Prometheus' own promtool accepts the rules, and each alert fires in its fault and in no other.

`scripts/fetch-promtool` fetches it; else put the binary of a release on the PATH.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_traffic import STEP_S, Traffic, series
from watched_runs import ENGINES, HOLDOUT, JOB, make_plan, rules_text

PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=str(Path(sys.executable).parent))
pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="need promtool (scripts/fetch-promtool puts it into the environment)"
)
LATE, EARLY = "14m", "3m"
WELL = Traffic()
# What is wrong with the candidate (and with the hold-out, where both have it), and the alerts it must raise.
FAULTS: dict[str, tuple[Traffic | None, Traffic | None, set[str]]] = {
    "nothing": (WELL, WELL, set()),
    "slow in both arms": (Traffic(tpot_s=0.08), Traffic(tpot_s=0.08), {"DraftproofTokenTail"}),
    "slower than the hold-out": (Traffic(tpot_s=0.03), WELL, {"DraftproofNetSlowdown"}),
    "faster than the hold-out": (WELL, Traffic(tpot_s=0.03), set()),
    "late first tokens": (Traffic(ttft_s=0.9), Traffic(ttft_s=0.9), {"DraftproofFirstTokenTail"}),
    "failures": (Traffic(failed=0.1), WELL, {"DraftproofFailures"}),
    "failures in both arms": (Traffic(failed=0.1), Traffic(failed=0.1), set()),
    "every request fails": (Traffic(failed=1.0), WELL, {"DraftproofFailures", "DraftproofStandstill"}),
    "requests hang": (Traffic(rps=0.0), WELL, {"DraftproofStandstill"}),
    "no traffic": (Traffic(rps=0.0, in_flight=0), WELL, set()),
    "a full cache": (Traffic(cache=0.99), WELL, {"DraftproofCachePressure"}),
    "an idle drafter": (Traffic(drafts=0.0), WELL, {"DraftproofDrafterIdle"}),
    "low acceptance": (Traffic(acceptance=1.2), WELL, {"DraftproofLowAcceptance"}),
    "preemptions": (Traffic(preemptions=0.5), WELL, {"DraftproofPreemptions"}),
    "too many requests": (Traffic(in_flight=20), WELL, {"DraftproofLoadBeyondEnvelope"}),
    "bursts beyond the envelope": (Traffic(burst=(20, 0)), WELL, {"DraftproofLoadBeyondEnvelope"}),
    "rare bursts": (Traffic(burst=(20, 0, 0, 0, 0)), WELL, set()),
    "another model": (Traffic(model="other"), WELL, {"DraftproofOtherModel"}),
    "no metrics": (None, WELL, {"DraftproofNotObserved"}),
    "no hold-out": (WELL, None, {"DraftproofNoComparison"}),
    "a hold-out with few requests": (WELL, Traffic(rps=0.01), {"DraftproofNoComparison"}),
    "a slow candidate with few requests": (Traffic(rps=0.01, tpot_s=0.08), WELL, set()),
}
# What an engine's metrics cannot raise, and what its other definitions raise besides.
CANNOT: dict[str, set[str]] = {
    "tensorrt-llm": {"DraftproofPreemptions"},
    "reference": {"DraftproofPreemptions", "DraftproofCachePressure"},
    "tgi": {
        "DraftproofFirstTokenTail",
        "DraftproofCachePressure",
        "DraftproofPreemptions",
        "DraftproofOtherModel",
    },
    "llamacpp": {
        "DraftproofFirstTokenTail",
        "DraftproofTokenTail",
        "DraftproofFailures",
        "DraftproofCachePressure",
        "DraftproofPreemptions",
        "DraftproofOtherModel",
    },
}
INSTEAD: dict[tuple[str, str], set[str]] = {
    # TGI counts steps, not drafts: with nothing accepted a step brings one token.
    ("tgi", "an idle drafter"): {"DraftproofDrafterIdle", "DraftproofLowAcceptance"},
    # llama.cpp counts no requests: its floors are in tokens, and a single answer is above them.
    ("llamacpp", "a hold-out with few requests"): set(),
    ("llamacpp", "a slow candidate with few requests"): {"DraftproofNetSlowdown"},
}


def run_promtool(tmp_path: Path, rules: str, tests: list[dict[str, Any]], interval: str = "1m") -> str:
    """Return what promtool says of the rules under tests, "" if it finds nothing wrong."""
    (tmp_path / "rules.yml").write_text(rules, encoding="utf-8")
    content = {"rule_files": ["rules.yml"], "evaluation_interval": interval, "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(content), encoding="utf-8")
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def firing_at(time: str, names: set[str]) -> dict[str, Any]:
    """Expect exactly these alerts to fire at a time."""
    return {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": time,
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
    }


def scenario(engine: str, fault: str) -> dict[str, Any]:
    """One fault as a unit test of promtool: nothing fires before its time, and then just what must."""
    candidate, holdout, alerts = FAULTS[fault]
    both = (
        *(series(engine, JOB, candidate) if candidate else ()),
        *(series(engine, HOLDOUT, holdout) if holdout else ()),
    )
    silent = ["9m", EARLY] if fault == "a full cache" else [EARLY]
    expected = INSTEAD.get((engine, fault), alerts - CANNOT.get(engine, set()))
    return {
        "name": fault,
        "interval": f"{STEP_S}s",
        "input_series": list(both),
        "promql_expr_test": [*(firing_at(time, set()) for time in silent), firing_at(LATE, expected)],
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_each_alert_fires_in_its_fault_and_in_no_other(engine, tmp_path):
    """Under every fault exactly the alerts of that fault fire, after their time and not before.

    The limits of the plan: 40 ms a token, 0.5 s to the first, 1.05 times the hold-out, 95 % of the cache.
    """
    tests = [scenario(engine, fault) for fault in FAULTS]
    assert run_promtool(tmp_path, rules_text(make_plan(engine)), tests) == ""


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_time_per_token_is_decoding_over_tokens(engine, tmp_path):
    """The recorded time per token is the true one, whatever the gaps between chunks."""
    test = {
        "interval": f"{STEP_S}s",
        "input_series": [*series(engine, JOB, Traffic(tpot_s=0.0125))],
        "promql_expr_test": [
            {
                "expr": 'round(arm:draftproof_time_per_token_seconds{arm="candidate"}, 1e-9)',
                "eval_time": LATE,
                "exp_samples": [
                    {
                        "labels": '{arm="candidate",run="demo-9f2c4e1ab77d"}',
                        "value": 0.0125,
                    }
                ],
            }
        ],
    }
    assert run_promtool(tmp_path, rules_text(make_plan(engine)), [test]) == ""


def test_restart_is_seen_and_raises_nothing_else(tmp_path):
    """Counters that begin again raise the restart alone: rates allow for it."""
    test = {
        "interval": f"{STEP_S}s",
        "input_series": [
            *series("vllm", JOB, Traffic(restarts=True)),
            *series("vllm", HOLDOUT, WELL),
        ],
        "promql_expr_test": [
            firing_at("14m", set()),
            firing_at("17m", {"DraftproofRestarted"}),
            firing_at("23m", set()),
        ],
    }
    assert run_promtool(tmp_path, rules_text(make_plan("vllm")), [test]) == ""


def test_approval_ends_after_its_last_day(tmp_path):
    """The alert of an approval's end is silent on the last day and fires on the next."""
    rules = rules_text(make_plan("vllm", approval="valid_until = 1970-01-01"))
    ended = 'count(ALERTS{alertname="DraftproofApprovalEnded",alertstate="firing"})'
    test = {
        "interval": "10m",
        "input_series": [],
        "promql_expr_test": [
            {"expr": ended, "eval_time": "23h50m", "exp_samples": []},
            {"expr": ended, "eval_time": "24h30m", "exp_samples": [{"labels": "{}", "value": 1}]},
        ],
    }
    assert run_promtool(tmp_path, rules, [test], interval="10m") == ""


def test_person_reads_the_value_and_the_rollback_artefact(tmp_path):
    """An alert's text holds the value and quotes the artefact letter by letter, templates in it included."""
    approval = 'rollback_artefact = \'run "plain" {{ .Values.tag }}\'\nowner = "serving team"'
    rules = rules_text(make_plan("vllm", approval=approval))
    test = {
        "interval": f"{STEP_S}s",
        "input_series": [
            *series("vllm", JOB, Traffic(tpot_s=0.03)),
            *series("vllm", HOLDOUT, Traffic(tpot_s=0.02)),
        ],
        "alert_rule_test": [
            {
                "eval_time": LATE,
                "alertname": "DraftproofNetSlowdown",
                "exp_alerts": [
                    {
                        "exp_labels": {
                            "severity": "critical",
                            "action": "rollback",
                            "run": "demo-9f2c4e1ab77d",
                        },
                        "exp_annotations": {
                            "summary": "time per token is 1.50 times the hold-out's, above 1.05",
                            "description": "The limit is 1 + thresholds.harm_margin. The hold-out must get a "
                            "random share of the same traffic; if its replicas carry less load each, its "
                            "tokens are faster for that reason alone.",
                            "runbook": 'Roll back: deploy run "plain" {{ .Values.tag }}. Then compare '
                            "prompts, load and engine version with the run before it is switched on again. "
                            "Owner: serving team.",
                            "evidence": "run demo, plan SHA-256 "
                            "9f2c4e1ab77d03c5e8f6a4b1d20c9e7f5a3b8c6d1e0f42a7b9c8d7e6f5a4b3c2",
                        },
                    }
                ],
            }
        ],
    }
    assert run_promtool(tmp_path, rules, [test]) == ""


def test_limit_on_the_failed_share_needs_no_hold_out(tmp_path):
    """A limit of the plan's own on failures is watched without a hold-out."""
    rules = rules_text(make_plan("vllm", rollback="max_failed_share = 0.05"), holdout=())
    tests = [
        {
            "interval": f"{STEP_S}s",
            "input_series": series("vllm", JOB, msgspec.structs.replace(WELL, failed=failed)),
            "promql_expr_test": [firing_at(LATE, alerts)],
        }
        for failed, alerts in ((0.04, set()), (0.06, {"DraftproofFailures"}))
    ]
    assert run_promtool(tmp_path, rules, tests) == ""


@pytest.mark.parametrize("engine", [*ENGINES, "generic"])
def test_promtool_accepts_the_rules_of_every_engine(engine, tmp_path):
    """The rules of an engine parse, with a hold-out and without, and odd text in the plan does no harm."""
    odd = 'owner = "a\\u0000b \\"\\\\ {{ $value \\u2028 \\U0001F600"\nvalid_until = 2027-01-31'
    holdouts = {"none.yml": (), "one.yml": (HOLDOUT,), "odd.yml": ("a.b|c", 'quote"\\d')}
    for name, holdout in holdouts.items():
        rules = rules_text(make_plan(engine, approval=odd), holdout=holdout)
        (tmp_path / name).write_text(rules, encoding="utf-8")
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "rules", *holdouts], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
