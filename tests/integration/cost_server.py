"""A process that stands for vLLM in tests of step costs: its steps take longer the more it drafts.

    python cost_server.py --port N [--speculative-config JSON] [--idle] [--accepts] [--in-period] [--refuses]

Every chunk is one token, as with drafts of which none is accepted.
"""

import argparse
import json
import signal
import sys
import threading
from typing import Any

from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

ORDINARY_S, CHECK_S, DRAFT_S = 0.002, 0.0005, 0.001


def build_script(options: argparse.Namespace, payload: dict[str, Any]) -> Script:
    """Return an answer of as many one-token chunks as were asked for."""
    config = json.loads(options.speculative_config or "{}")
    length = config.get("num_speculative_tokens", 0)
    tokens = payload["max_tokens"]
    gap_s = ORDINARY_S + length * (CHECK_S + (0 if config.get("method") == "ngram" else DRAFT_S))
    waits = options.in_period and "Number 12" in payload["messages"][0]["content"]
    drafted = 0 if options.idle else length * (tokens - 1)
    return Script(
        tokens_per_chunk=(1,) * tokens,
        gaps_s=(gap_s,),
        ttft_s=tokens * gap_s * 3 if waits else 0.0,
        metrics=_count(drafted, length, accepted=tokens // 2 if options.accepts else 0) if length else None,
    )


def _count(drafted: int, length: int, *, accepted: int) -> dict[str, Any]:
    counts = {
        "num_spec_steps": drafted // length,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "acceptance_histogram": [drafted // length],
    }
    return {"speculative_decoding": counts}


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speculative-config")
    for flag in ("--idle", "--accepts", "--in-period", "--refuses"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    if options.refuses and "synthetic" in str(options.speculative_config):
        sys.stderr.write("ValidationError: rejection_sample_method: unexpected value 'synthetic'\n")
        return 1
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    version = {"version": "0.32.0"}
    with ScriptedServer(lambda payload: build_script(options, payload), port=options.port, version=version):
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
