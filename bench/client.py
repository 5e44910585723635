#!/usr/bin/env python3
"""The load client beside its peers, one after the other against the same server of known timing; writes JSON.

The server knows when each request came and when it wrote each chunk. For every kind of stream and every
client the report has what the client says, what the server wrote, and the CPU time of the client's processes
between the first request and the last chunk. Our side is a whole run with plan and journal: from the start of
the candidate's measurement period to its end. The server has one core, the client with all its
processes another. Run it on a machine that does nothing else. Peers are named by options; one that is not
named is said to be absent.

Kinds of stream, at the same chunks a second: one token a chunk; several, as verification steps bring them;
two events a write; events cut over two packets. `wide` is many streams at a rate that fills a core of most
clients; `answers of N chunks` are as many, short and long, with the counts of drafts at the end of each.
"""

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from client_ours import read_journal, write_plan
from client_peers import QUANTITIES, Ask, Figures, Peer, describe, last_words, make_peers
from client_watch import CpuWatch, describe_truth, keep_last, window_of

from draftproof.core.records import RequestRecord
from draftproof.judge.metrics.client_error import TrueAnswer, compute_client_error
from draftproof.judge.metrics.request import compute_request_metrics
from draftproof.judge.metrics.service import percentile
from draftproof.measure.selfcheck.client_check import check_client, list_profiles
from draftproof.measure.selfcheck.probing import Profile, fetch_truth, serving

OURS = "draftproof"
# The aims, and what a run is held to: see docs/client.md.
LEAST_CHUNKS_PER_S = 40_000
LARGEST_CPU_RATIO = 0.4
LARGEST_SEND_LAG_MS = 1.0
_PATIENCE_S = 600
_QUIET = {"TOKENIZERS_PARALLELISM": "false"}
_ANSWERS, _LEAST_S = 6, 8.0  # a stream has so many answers at least, and answers for so long
_SHORT = (16, 32, 128)  # chunks of an answer
_STEPS = (1, 4, 2, 5, 1, 3)  # tokens of the chunks of a service that verifies drafts


def main() -> int:
    """Run every client on every kind of stream, write the report, print a table."""
    options = _parse_options()
    peers, absent = make_peers(vars(options))
    report: dict[str, Any] = {
        "host": {"cpus": os.cpu_count(), "machine": platform.machine(), "kernel": platform.release()},
        "python": platform.python_version(),
        "versions": {OURS: version("draftproof"), **{peer.name: peer.version for peer in peers}},
        "absent": absent,
        "kinds": {},
    }
    for profile in _choose(options):
        report["kinds"][profile.name] = _run_kind(profile, peers, options)
        _print_kind(profile.name, report["kinds"][profile.name])
    if not options.only:
        _say("requests due at times of their own")
        report["open_loop"] = _measure_send_lag(options)
    if not options.no_check:
        report["client_check"] = msgspec.to_builtins(check_client(tell=_say))
    report["ratios"] = _compute_ratios(report)
    Path(options.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report["ratios"], indent=1))
    return 0


def _choose(options: argparse.Namespace) -> list[Profile]:
    kinds = list(list_profiles(64, 2000.0, 4.0))
    wide = _wide(options)
    kinds.append(wide)
    kinds += [
        msgspec.structs.replace(
            wide, name=f"answers of {chunks} chunks", chunks=chunks, tokens=_STEPS, acceptance=True
        )
        for chunks in _SHORT
    ]
    return [kind for kind in kinds if not options.only or kind.name in options.only]


def _wide(options: argparse.Namespace) -> Profile:
    return Profile(name="wide", streams=256, chunks_per_s=options.wide_rate)


def _requests(profile: Profile) -> int:
    return profile.streams * max(_ANSWERS, math.ceil(_LEAST_S / profile.answer_s))


def _run_kind(profile: Profile, peers: Sequence[Peer], options: argparse.Namespace) -> dict[str, Any]:
    found = {OURS: _run_ours(profile)}
    for peer in peers:
        _say(f"{profile.name}: {peer.name}")
        found[peer.name] = _run_peer(peer, profile, options.tokenizer)
    return {"profile": msgspec.to_builtins(profile), "clients": found}


def _run_ours(profile: Profile) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, serving(profile.pace) as port:
        folder = Path(name)
        watch, said = _run(write_plan(folder, port, profile, _requests(profile)))
        journal = read_journal(folder)
        if journal is None or not journal.blocks:
            return {"failure": said}
        truth = fetch_truth(port)
    period = next(one for one in journal.blocks if one.arm == "candidate")
    counted = [one for one in journal.records if (one.phase, one.arm) == ("measure", "candidate")]
    window = period.started_ns, period.ended_ns
    within = [one for one in truth if window[0] <= one.received_ns <= window[1]]
    answers = keep_last(within, len(counted), profile.pace.chunks)
    found = _hold_against(_read_ours(counted), answers, truth, watch, window)
    error = compute_client_error(counted, truth, {record.item_id: record.item_id for record in counted})
    lag_ns = period.send_lag_p99_ns
    return found | {
        "send_lag_ms_p99": None if lag_ns is None else lag_ns / 1e6,
        "errors_by_request": msgspec.to_builtins(error),
    }


def _measure_send_lag(options: argparse.Namespace) -> dict[str, Any]:
    """Return how late requests of an open loop reached the socket, by chunks of an answer."""
    found = {}
    for chunks in _SHORT:
        profile = msgspec.structs.replace(_wide(options), chunks=chunks, tokens=_STEPS, acceptance=True)
        with tempfile.TemporaryDirectory() as name, serving(profile.pace) as port:
            _, said = _run(write_plan(Path(name), port, profile, _requests(profile), is_open=True))
            journal = read_journal(Path(name))
        lags = [one.send_lag_p99_ns for one in journal.blocks if one.completed] if journal else []
        known = [lag_ns / 1e6 for lag_ns in lags if lag_ns is not None]
        found[str(chunks)] = {"send_lag_ms_p99": max(known)} if known else {"failure": said}
    return found


def _read_ours(records: Sequence[RequestRecord]) -> Figures:
    metrics = [compute_request_metrics(record, stall_threshold_ns=1) for record in records]
    gaps = [
        after.arrival_ns - before.arrival_ns
        for record in records
        for before, after in zip(record.chunks, record.chunks[1:], strict=False)
    ]
    ttft = [one.ttft_ns for one in metrics if one.ttft_ns is not None]
    tpot = [one.tpot_ns for one in metrics if one.tpot_ns is not None]
    is_ok = [record.outcome == "ok" for record in records]
    tokens = [record.output_tokens for record in records if record.output_tokens is not None]
    return {
        "ttft_ms_p50": _ms(ttft, 0.50),
        "ttft_ms_p99": _ms(ttft, 0.99),
        "gap_ms_p50": _ms(gaps, 0.50),
        "gap_ms_p99": _ms(gaps, 0.99),
        "tpot_ms_p50": _ms(tpot, 0.50),
        "tokens_per_request": sum(tokens) / len(tokens) if tokens else None,
        "requests_ok": sum(is_ok),
        "requests_failed": len(is_ok) - sum(is_ok),
    }


def _run_peer(peer: Peer, profile: Profile, tokenizer: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, serving(profile.pace) as port:
        folder, requests = Path(name), _requests(profile)
        pace = profile.pace
        tokens = sum(pace.tokens[index % len(pace.tokens)] for index in range(pace.chunks))
        ask = Ask(port, profile.streams, requests, tokens, tokenizer, folder)
        watch, said = _run(peer.command(ask))
        reported = describe(peer, folder)
        if isinstance(reported, str):
            return {"failure": f"{reported}; it said: {said}"}
        truth = fetch_truth(port)
        return _hold_against(reported, keep_last(truth, requests, pace.chunks), truth, watch)


def _run(command: Sequence[str]) -> tuple[CpuWatch, str]:
    """Run a client on a core of its own; return its CPU times and the end of what it printed."""
    cores = sorted(os.sched_getaffinity(0))
    pinned = (
        ("taskset", "-c", str(cores[1]), *command) if len(cores) > 1 and shutil.which("taskset") else command
    )
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(pinned, stdout=log, stderr=log, env=os.environ | _QUIET)  # noqa: S603
        with CpuWatch(child.pid) as watch:
            try:
                child.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        log.seek(0)
        return watch, last_words(log.read())


def _hold_against(
    reported: Figures,
    answers: Sequence[TrueAnswer],
    every: Sequence[TrueAnswer],
    watch: CpuWatch,
    window: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return what was said beside what was written, and what the saying cost.

    The cost is per chunk of all that was written to the client meanwhile, answers included that it does not
    count.
    """
    if not answers:
        return {"failure": "the server wrote no answer"}
    truth, (start_ns, end_ns) = describe_truth(answers), window or window_of(answers)
    chunks = sum(start_ns <= at_ns <= end_ns for answer in every for at_ns in answer.written_ns)
    seconds, cpu_s = (end_ns - start_ns) / 1e9, watch.used_s(start_ns, end_ns)
    return {
        "reported": reported,
        "truth": truth,
        "relative_error": {name: _relative(reported.get(name), truth[name]) for name in QUANTITIES},
        "chunks": chunks,
        "chunks_per_s": chunks / seconds,
        "cpu_s_per_1000_chunks": None if cpu_s is None else 1000 * cpu_s / chunks,
        "cpu_share": None if cpu_s is None else cpu_s / seconds,
    }


def _compute_ratios(report: dict[str, Any]) -> dict[str, Any]:
    """Return CPU time over each peer's on every kind of stream, and what the aims say of it."""
    ratios: dict[str, Any] = {"cpu_over_peer": {}, "aims": {}}
    for kind, found in report["kinds"].items():
        ours = found["clients"][OURS].get("cpu_s_per_1000_chunks")
        ratios["cpu_over_peer"][kind] = {
            name: ours / theirs
            for name, client in found["clients"].items()
            if name != OURS and ours and (theirs := client.get("cpu_s_per_1000_chunks"))
        }
    over_vllm = [
        one["vllm bench serve"] for one in ratios["cpu_over_peer"].values() if "vllm bench serve" in one
    ]
    ratios["aims"]["cpu_over_vllm"] = {"value": max(over_vllm, default=None), "at_most": LARGEST_CPU_RATIO}
    lags = [one.get("send_lag_ms_p99", math.inf) for one in report.get("open_loop", {}).values()]
    ratios["aims"]["send_lag_ms_p99"] = {
        "value": max(lags, default=None),
        "at_most": LARGEST_SEND_LAG_MS,
    }
    reached = report.get("client_check", {}).get("max_chunks_per_s")
    ratios["aims"]["max_chunks_per_s"] = {"value": reached, "at_least": LEAST_CHUNKS_PER_S}
    return ratios


def _print_kind(kind: str, found: dict[str, Any]) -> None:
    print(f"\n{kind}: reported against written, relative")
    for name, client in found["clients"].items():
        if "failure" in client:
            print(f"  {name:18} {client['failure']}")
            continue
        errors = "  ".join(
            f"{quantity} {'-' if value is None else format(value, '+.1%')}"
            for quantity, value in client["relative_error"].items()
        )
        cpu = client["cpu_s_per_1000_chunks"]
        said = "-" if cpu is None else f"{cpu:.4f}"
        failed = client["reported"].get("requests_failed")
        rate = f"{client['chunks_per_s']:8,.0f} chunks/s"
        print(f"  {name:18} {rate}  CPU s/1000 {said}  failed {failed}  {errors}")


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


def _relative(value: float | None, truth: float | None) -> float | None:
    return None if value is None or not truth else value / truth - 1


def _ms(values_ns: Sequence[float], share: float) -> float | None:
    found = percentile(values_ns, share)
    return None if found is None else found / 1e6


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-python", help="a Python that has vLLM")
    parser.add_argument("--guidellm", help="GuideLLM's script")
    parser.add_argument("--aiperf", help="AIPerf's script")
    parser.add_argument(
        "--tokenizer", default="", help="a folder with tokenizer.json, which the peers ask for"
    )
    parser.add_argument("--only", action="append", help="one kind of stream; may be given several times")
    parser.add_argument("--wide-rate", type=float, default=21_000.0, help="chunks a second of `wide`")
    parser.add_argument("--no-check", action="store_true", help="leave the client's own check out")
    parser.add_argument("--out", default=str(Path(__file__).with_suffix(".json")))
    options = parser.parse_args()
    if not options.tokenizer:
        options.tokenizer = _find_tokenizer()
    return options


def _find_tokenizer() -> str:
    """Return the demo's model folder: any tokenizer does, since the server states its counts."""
    from draftproof.reference.weights.fetch import demo_model_path  # noqa: PLC0415 - only peers need it

    return str(demo_model_path())


if __name__ == "__main__":
    sys.exit(main())
