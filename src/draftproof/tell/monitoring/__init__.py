"""Monitoring that teams already run: Prometheus rules and a Grafana dashboard (docs/monitoring.md).

Pure text out of a run: `render_rules(results, plan, manifest, jobs=..., holdout_jobs=...)` and
`render_dashboard(results, plan, manifest, jobs=..., holdout_jobs=...)`, kept as `RULES_FILE` and
`DASHBOARD_FILE`. `watch_run` is what both are made from, and lists what cannot be watched.
"""

from draftproof.tell.monitoring.dashboard import render_dashboard
from draftproof.tell.monitoring.rules import render_rules, render_watch
from draftproof.tell.monitoring.watch import Watch, default_job, watch_run

__all__ = [
    "DASHBOARD_FILE",
    "RULES_FILE",
    "Watch",
    "default_job",
    "render_dashboard",
    "render_rules",
    "render_watch",
    "watch_run",
]

RULES_FILE = "draftproof.rules.yml"
DASHBOARD_FILE = "draftproof.dashboard.json"
