"""Services that are attached to by address, and what a user sees of them on the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from byte_server import CHAT, DIALECTS, HTML, JSON, TEXT, Route, events, models, respond

KEY = "sk-hard-0123456789"
PAGE = "<!DOCTYPE html>\n<html><title>Sign in</title></html>\n"
PLAN = """\
name = "attached"
question = "Does it pay?"
[workload]
path = "items.jsonl"
[[load]]
name = "single"
concurrency = 1
block_size = 4
[arms.baseline]
engine = "{engine}"
url = "{url}"
{arm}
[arms.candidate]
engine = "{engine}"
url = "{url}"
{arm}
[comparison]
null_arm = false
resamples = 200
statistic = "p50"
[thresholds]
ttft_margin = 5.0
e2e_margin = 0.9
failure_margin = 1.0
quality_margin = 1.0
[limits]
request_s = {request_s}
warmup_requests = 1
client_lag_ms = 5000.0
repeat_disturbed = false
ready_s = {ready_s}
behaviour_probes = false
"""


class Attached:
    """A folder with a workload, and the command line called on a plan whose arms are attached to."""

    def __init__(self, folder: Path, call: Callable[..., tuple[int, str, str]]) -> None:
        self.folder, self._call, self.out = folder, call, folder / "run"
        self.write_items(4)

    def write_items(self, count: int) -> None:
        lines = [
            {
                "id": f"i{number}",
                "messages": [{"role": "user", "content": "hi"}],
                "segments": {"task": "chat"},
            }
            for number in range(count)
        ]
        (self.folder / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def call(
        self,
        command: str,
        url: str,
        *options: str,
        engine: str = "generic",
        arm: str = "",
        request_s: float = 5,
        ready_s: float = 300,
        after: str = "",
    ) -> tuple[int, str, str]:
        """Return exit code, output and errors of a command on a plan that attaches to `url`."""
        plan = self.write_plan(url, engine=engine, arm=arm, request_s=request_s, ready_s=ready_s, after=after)
        out = ("--out", self.out) if command == "run" else ()
        quiet = ("--quiet",) if command == "check" else ()
        return self._call(command, plan, *out, *quiet, *options)

    def write_plan(
        self,
        url: str,
        *,
        engine: str = "generic",
        arm: str = "",
        request_s: float = 5,
        ready_s: float = 300,
        after: str = "",
    ) -> Path:
        path = self.folder / "plan.toml"
        text = PLAN.format(url=url, engine=engine, arm=arm, request_s=request_s, ready_s=ready_s)
        path.write_text(text + after)
        return path

    def refuse(self, url: str, **options: Any) -> tuple[int, str]:
        """Return the sentence with which `check` ends, without the program's name."""
        code, out, err = self.call("check", url, **options)
        assert (out, err.count("\n")) == ("", 1), (out, err)
        assert err.startswith("draftproof: ")
        return code, err.removeprefix("draftproof: ").rstrip("\n")


WHOLE = respond(events(DIALECTS["generic"].frames), framing="chunked")
CHAT_NAME = "v1__chat__completions"
ROUTES: dict[str, Route] = {"/health": respond("ok", kind=TEXT), "/v1/models": models("m"), CHAT: WHOLE}
METRICS = respond("# TYPE up gauge\nup 1\n", kind=TEXT)
GIVE = 'Fix: give its key: [arms.baseline.headers] Authorization = "Bearer ${NAME}".'
HEADERS = 'headers = { Authorization = "Bearer ${HARD_KEY}" }'
REFUSED = respond('{"error":{"message":"no such key"}}', status=401, kind=JSON)
FORBIDDEN = respond("not yours", status=403, kind=TEXT)
WEB = respond(PAGE, kind=HTML)


def served(**changes: Route) -> dict[str, Route]:
    """Return the routes of a good service with some of them changed; names have "__" for "/"."""
    return ROUTES | {"/" + path.replace("__", "/"): reply for path, reply in changes.items()}
