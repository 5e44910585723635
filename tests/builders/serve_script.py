"""`python -m tests.builders.serve_script`: the scripted server as a process, an arm of known timing.

It stands for a service in tests of whole runs. `@FILE` in place of options reads them from a file, one a
line, so that a test can change a service between two starts of the same command.

Owns the command line only; what is answered is a `Script`.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.builders.playback import render_json_response
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

DIED_CODE = 70


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code."""
    options = _parse(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = ScriptedServer(
        _Answers(options),
        port=options.port,
        version=_version(options),
        ready=not options.never_ready,
        max_concurrent=options.max_concurrent,
    )
    try:
        with server:
            stop.wait()
    except OSError as error:
        sys.stderr.write(f"cannot listen there ({error.strerror}).\n")
        return 2
    return 0


class _Answers:
    """Chooses the script of each request; ends the process where the options say so."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._streamed = options, 0
        self._script = build_script(options)
        self._dies = options.die_after is not None and not (options.die_once and options.die_once.exists())

    def __call__(self, payload: dict[str, Any]) -> Script:
        if not payload.get("stream"):
            body: dict[str, Any] = {"choices": [], "metrics": self._script.metrics}
            return Script(raw_response=render_json_response(200, body))
        self._streamed += 1
        if self._dies and self._streamed > self._options.die_after:
            if self._options.die_once:
                self._options.die_once.touch()
            os._exit(DIED_CODE)
        return self._script


def build_script(options: argparse.Namespace) -> Script:
    """Return the answer that the options describe: one token, then whole chunks, one every gap.

    With `tokens_per_chunk` k every later chunk is a verification step that accepted all its k − 1 drafts.
    """
    later, rest = divmod(options.answer_tokens - 1, options.tokens_per_chunk)
    chunks = (1, *[options.tokens_per_chunk] * later, *[rest] * (rest > 0))
    return Script(
        tokens_per_chunk=chunks,
        ttft_s=options.ttft_ms / 1e3,
        gaps_s=(options.gap_ms / 1e3,),
        metrics={} if options.acceptance == "off" else {"speculative_decoding": _count(options, chunks)},
    )


def _count(options: argparse.Namespace, chunks: Sequence[int]) -> dict[str, Any]:
    accepted = [count - 1 for count in chunks[1:] if count > 1 and options.acceptance == "active"]
    histogram = [accepted.count(value) for value in range(options.tokens_per_chunk)]
    return {
        "num_spec_steps": len(accepted),
        "num_draft_tokens": sum(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "acceptance_histogram": histogram,
    }


def _version(options: argparse.Namespace) -> dict[str, Any] | None:
    if options.engine is None:
        return None
    settings = (setting.partition("=") for setting in options.setting)
    config = {key: int(value) if value.isdecimal() else value for key, _, value in settings}
    return {"version": "1", "engine": options.engine, "config": config}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="serve_script", fromfile_prefix_chars="@")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=2.0)
    parser.add_argument("--gap-ms", type=float, default=4.0)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--answer-tokens", type=int, default=9)
    parser.add_argument("--acceptance", choices=("off", "idle", "active"), default="off")
    parser.add_argument("--engine", help="what /version says; without it there is no such path")
    parser.add_argument("--setting", action="append", default=[], help="KEY=VALUE of /version's config")
    parser.add_argument("--die-after", type=int, help="end the process at the streamed request after so many")
    parser.add_argument("--die-once", type=Path, help="die only if this file is absent, and make it")
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--max-concurrent", type=int, help="answers at once; later requests wait in line")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
