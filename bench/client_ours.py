"""Our side of the client bench: a whole run with plan and journal, both of whose arms are one server.

The candidate's measurement period is what is compared: its answers are those that the peers are given.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from draftproof.measure.selfcheck.probing import Profile
from draftproof.store.journal import JournalContents, load_journal
from draftproof.store.tables import JOURNAL_FOLDER

_PLAN = """\
name = "client-bench"
[workload]
path = "items.jsonl"
[[load]]
name = "bench"
{load}
block_size = {requests}
[arms.baseline]
engine = "generic"
url = "http://127.0.0.1:{port}/plain"
[arms.candidate]
engine = "generic"
url = "http://127.0.0.1:{port}"
[comparison]
null_arm = false
resamples = 200
[thresholds]
failure_margin = 1.0
quality_margin = 1.0
[limits]
behaviour_probes = false
warmup_requests = 1
warmup_max_s = 0.001
client_lag_ms = 5000.0
"""


def write_plan(
    folder: Path, port: int, profile: Profile, requests: int, *, is_open: bool = False
) -> Sequence[str]:
    """Write plan and workload of a run that asks each arm so many requests; return its command.

    `is_open`: requests are due at times of their own, at the rate that keeps as many streams open on average.
    """
    lines = (
        json.dumps({"id": name, "messages": [{"role": "user", "content": name}], "max_tokens": 6400})
        for name in (f"r{index}" for index in range(requests))
    )
    (folder / "items.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rate = f"arrivals = {{ rps = {profile.streams / profile.answer_s} }}"
    load = rate if is_open else f"concurrency = {profile.streams}"
    plan = _PLAN.format(load=load, requests=requests, port=port)
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    run = ("run", str(folder / "plan.toml"), "--out", str(folder / "run"))
    return (sys.executable, "-m", "draftproof", *run)


def read_journal(folder: Path) -> JournalContents | None:
    """Return what the run has recorded, None where it did not come so far."""
    journal = folder / "run" / JOURNAL_FOLDER
    return load_journal(journal) if journal.is_dir() else None
