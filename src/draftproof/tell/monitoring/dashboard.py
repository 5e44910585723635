"""A Grafana dashboard in JSON: the recorded series of a run, with the limits as lines. Pure.

Grafana 10 and later read it: schema version 39, a data source that is chosen on top of the page.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from draftproof.core.manifests import Manifest
from draftproof.judge.results.run import Results
from draftproof.plan.limits import Limit
from draftproof.plan.schema import Plan
from draftproof.tell.monitoring.recordings import FAILED_EXCESS, SLOWDOWN, quote
from draftproof.tell.monitoring.watch import Watch, watch_run

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SCHEMA_VERSION = 39
_WIDTH, _HEIGHT, _TEXT_HEIGHT = 12, 8, 9


class _Panel(NamedTuple):
    """A graph of one recorded series: its title, unit in Grafana's words, the limit drawn, what it tells."""

    series: str
    title: str
    unit: str = "short"
    limit: str = ""
    about: str = ""


_ENVELOPE = "The line is the envelope: above it nothing was shown."
_BELOW = frozenset({"acceptance_length"})  # limits that are floors
_PANELS = (
    _Panel(
        SLOWDOWN,
        "Time per token, candidate over hold-out",
        limit="slowdown",
        about="Below 1 the candidate is faster. Drawn only while both arms have enough traffic.",
    ),
    _Panel(
        "arm:draftproof_time_per_token_seconds",
        "Time per token, mean",
        "s",
        about="Seconds of decoding over the tokens they brought, never the gap between chunks.",
    ),
    _Panel(
        "arm:draftproof_tail_time_per_token_seconds",
        "Time per token, {tail}",
        "s",
        "tail_tpot_s",
        "Over answered requests.",
    ),
    _Panel(
        "arm:draftproof_tail_ttft_seconds",
        "Time to first token, {tail}",
        "s",
        "tail_ttft_s",
        "From the engine's receipt of a request, over answered requests.",
    ),
    _Panel(
        "arm:draftproof_acceptance_length",
        "Acceptance length",
        limit="acceptance_length",
        about="Tokens a verification step brings, the target's own included. An early warning, not the gain.",
    ),
    _Panel("arm:draftproof_drafting", "Drafter at work (0: idle)"),
    _Panel(
        "arm:draftproof_mean_requests_in_flight",
        "Requests in flight per replica, mean over the window",
        limit="load",
        about=_ENVELOPE,
    ),
    _Panel(
        "arm:draftproof_request_rate",
        "Requests a second per replica",
        "reqps",
        "rate",
        f"Requests that ended or were refused. {_ENVELOPE}",
    ),
    _Panel("arm:draftproof_cache_usage", "Key-value cache in use", "percentunit", "cache_usage"),
    _Panel("arm:draftproof_preemptions_per_request", "Preemptions per request", limit="preemptions"),
    _Panel("arm:draftproof_failed_share", "Failed requests", "percentunit", "failed_share"),
    _Panel(FAILED_EXCESS, "Failed requests, candidate less hold-out", "percentunit", "failed_excess"),
    _Panel("arm:draftproof_finished_requests", "Requests that ended in a window"),
)


def render_dashboard(
    results: Results,
    plan: Plan,
    manifest: Manifest,
    *,
    jobs: Sequence[str] = (),
    holdout_jobs: Sequence[str] = (),
) -> str:
    """Return the dashboard of a run's candidate as JSON for Grafana's import; it reads the rules' series."""
    watch = watch_run(results, plan, manifest, jobs=jobs, holdout_jobs=holdout_jobs)
    return msgspec.json.format(msgspec.json.encode(build_dashboard(watch)), indent=2).decode() + "\n"


def build_dashboard(watch: Watch) -> dict[str, Any]:
    """Return the dashboard as plain data."""
    return {
        # At most 40 characters are all that Grafana takes.
        "uid": f"draftproof-{dict(watch.facts)['plan_sha256'][:16]}",
        "title": f"Speculative decoding: {watch.run_name}",
        "description": f"Written by draftproof from the run {watch.run_label}; load its rules first.",
        "tags": ["draftproof"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_choose_source()]},
        "annotations": {"list": [_mark_alerts(watch)]},
        "panels": list(_panels(watch)),
    }


def _choose_source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "options": [],
        "current": {},
    }


def _mark_alerts(watch: Watch) -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f'ALERTS{{alertstate="firing",run={quote(watch.run_label)}}}',
        "step": "60s",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{severity}}, {{action}}",
    }


def _panels(watch: Watch) -> Iterator[dict[str, Any]]:
    yield _text_panel(watch)
    known = {recording.name for recording in watch.recordings}
    shown = [panel for panel in _PANELS if panel.series in known]
    for index, panel in enumerate(shown):
        yield _graph(panel, watch, index)


def _text_panel(watch: Watch) -> dict[str, Any]:
    return {
        "id": 1,
        "type": "text",
        "title": "What is watched",
        "gridPos": {"x": 0, "y": 0, "w": 2 * _WIDTH, "h": _TEXT_HEIGHT},
        "options": {"mode": "markdown", "content": _describe(watch)},
    }


def _describe(watch: Watch) -> str:
    facts = dict(watch.facts)
    segments = sum(label == "envelope" for label, _ in watch.facts)
    words = {"load": "requests in flight", "rate": "requests/s"}
    limits = [
        f"{watch.limits[name].value:.6g} {unit} a replica"
        for name, unit in words.items()
        if name in watch.limits
    ]
    envelope = ", ".join((f"{segments} segments", *limits)) if limits else "none"
    about = (
        f"**Run** {_plain(facts['run'])}, plan {facts['plan_sha256']}",
        f"**engine** {watch.engine_title}",
        f"**decision** {_plain(facts['decision'])} ({_plain(facts['evidence'])})",
        f"**envelope** {envelope}",
    )
    lines = [" · ".join(about), "", "**Cannot be watched**", ""]
    lines += [f"- {_plain(one.what)}: {_plain(one.why)}" for one in watch.unwatched]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Return a text in which Markdown and Grafana's variables find nothing to replace."""
    return "".join(f"\\{one}" if one in "\\`*_[]<>#|" else one for one in " ".join(text.split())).replace(
        "$", "&#36;"
    )


def _graph(panel: _Panel, watch: Watch, index: int) -> dict[str, Any]:
    recorded = [one for one in watch.recordings if one.name == panel.series]
    arms = any(one.arm is not None for one in recorded)
    legend = "ratio" if not arms else "{{arm}} {{instance}}" if recorded[0].by_instance else "{{arm}}"
    limit = watch.limits.get(panel.limit)
    return {
        "id": index + 2,
        "type": "timeseries",
        "title": panel.title.format(tail=watch.tail),
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {
            "x": _WIDTH * (index % 2),
            "y": _TEXT_HEIGHT + _HEIGHT * (index // 2),
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": _defaults(panel, limit), "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "none"},
        },
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": f"{panel.series}{{run={quote(watch.run_label)}}}",
                "legendFormat": legend,
                "range": True,
            }
        ],
    }


def _defaults(panel: _Panel, limit: Limit | None) -> dict[str, Any]:
    """Return unit and limit of a graph: red beyond the limit, drawn as a line."""
    inside, beyond = ("red", "green") if panel.limit in _BELOW else ("green", "red")
    steps: list[dict[str, Any]] = [{"color": inside if limit else "green", "value": None}]
    if limit is not None:
        steps.append({"color": beyond, "value": limit.value})
    return {
        "unit": panel.unit,
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "thresholdsStyle": {"mode": "line" if limit else "off"},
        },
        "thresholds": {"mode": "absolute", "steps": steps},
    }
