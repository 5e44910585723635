"""Peers of the load client: how each is called, and where its report states which figure."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = dict[str, float | None]
Report = Callable[[Path], Figures]

# The quantities that are compared with the server's truth. A peer's ITL is what it calls so.
QUANTITIES = ("ttft_ms_p50", "ttft_ms_p99", "gap_ms_p50", "gap_ms_p99", "tpot_ms_p50", "tokens_per_request")


@dataclass(frozen=True)
class Ask:
    """What a client is to do: where, how many streams, how many requests, which files it may use."""

    port: int
    streams: int
    requests: int
    tokens: int
    tokenizer: str
    folder: Path

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    def write_prompts(self, key: str) -> Path:
        """Write one prompt a request as JSON lines and return the file."""
        path = self.folder / f"prompts-{key}.jsonl"
        lines = (json.dumps({key: f"r{index} tell me more"}) for index in range(self.requests))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path


@dataclass(frozen=True)
class Peer:
    """One tool: its command for a task and how its report is read."""

    name: str
    version: str
    command: Callable[[Ask], Sequence[str]]
    read: Report


def find_vllm(python: str) -> Peer:
    """Return `vllm bench serve` of a Python that has vLLM."""

    def command(ask: Ask) -> Sequence[str]:
        return (
            *(python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai-chat"),
            *("--base-url", ask.url, "--endpoint", "/v1/chat/completions", "--model", "paced"),
            *("--tokenizer", ask.tokenizer, "--dataset-name", "custom", "--skip-chat-template"),
            *("--dataset-path", str(ask.write_prompts("prompt")), "--custom-output-len", str(ask.tokens)),
            *("--num-prompts", str(ask.requests), "--max-concurrency", str(ask.streams)),
            *("--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,99", "--disable-tqdm"),
            *("--save-result", "--result-dir", str(ask.folder), "--result-filename", "vllm.json"),
        )

    return Peer("vllm bench serve", _version_of(python, "vllm"), command, _read_vllm)


def find_guidellm(script: str) -> Peer:
    """Return GuideLLM, given its script."""

    def command(ask: Ask) -> Sequence[str]:
        return (
            *(script, "run", "--backend", f"kind=openai_http,target={ask.url},model=paced"),
            *("--profile", f"kind=concurrent,streams={ask.streams}"),
            *("--constraint", f"kind=max_requests,count={ask.requests}"),
            *("--data", f"kind=json_file,path={ask.write_prompts('prompt')}"),
            *("--tokenizer", f"kind=hf_auto,model={ask.tokenizer}"),
            *("--output", f"kind=json,path={ask.folder / 'guidellm.json'}", "--disable-console"),
        )

    return Peer("GuideLLM", _version_of(_python_beside(script), "guidellm"), command, _read_guidellm)


def find_aiperf(script: str) -> Peer:
    """Return AIPerf, given its script; it is asked to use the server's counts of every chunk."""

    def command(ask: Ask) -> Sequence[str]:
        return (
            *(script, "profile", "--model", "paced", "--url", ask.url, "--endpoint-type", "chat"),
            *("--streaming", "--concurrency", str(ask.streams), "--request-count", str(ask.requests)),
            *("--tokenizer", ask.tokenizer, "--input-file", str(ask.write_prompts("text"))),
            *("--custom-dataset-type", "single_turn", "--ui", "none", "--artifact-dir", str(ask.folder)),
            *("--use-server-token-count", "--per-chunk-usage", "--no-server-metrics", "--no-gpu-telemetry"),
        )

    return Peer("AIPerf", _version_of(_python_beside(script), "aiperf"), command, _read_aiperf)


def _read_vllm(folder: Path) -> Figures:
    found = json.loads((folder / "vllm.json").read_text(encoding="utf-8"))
    return {
        "ttft_ms_p50": found.get("median_ttft_ms"),
        "ttft_ms_p99": found.get("p99_ttft_ms"),
        "gap_ms_p50": found.get("median_itl_ms"),
        "gap_ms_p99": found.get("p99_itl_ms"),
        "tpot_ms_p50": found.get("median_tpot_ms"),
        "tokens_per_request": _ratio(found.get("total_output_tokens"), found.get("completed")),
        "requests_ok": found.get("completed"),
        "requests_failed": found.get("failed"),
    }


def _read_aiperf(folder: Path) -> Figures:
    found = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))

    def pick(metric: str, statistic: str) -> float | None:
        return (found.get(metric) or {}).get(statistic)

    return {
        "ttft_ms_p50": pick("time_to_first_token", "p50"),
        "ttft_ms_p99": pick("time_to_first_token", "p99"),
        "gap_ms_p50": pick("inter_chunk_latency", "p50"),
        "gap_ms_p99": pick("inter_chunk_latency", "p99"),
        "tpot_ms_p50": pick("inter_token_latency", "p50"),
        "tokens_per_request": pick("output_sequence_length", "avg"),
        "requests_ok": pick("request_count", "avg"),
        "requests_failed": pick("error_request_count", "avg") or 0,
    }


def _read_guidellm(folder: Path) -> Figures:
    found = json.loads((folder / "guidellm.json").read_text(encoding="utf-8"))
    metrics = found["benchmarks"][0]["metrics"]

    def pick(metric: str, statistic: str) -> float | None:
        spread = (metrics.get(metric) or {}).get("successful") or {}
        where = spread if statistic == "mean" else spread.get("percentiles") or {}
        return where.get(statistic)

    totals = metrics.get("request_totals") or {}
    return {
        "ttft_ms_p50": pick("time_to_first_token_ms", "p50"),
        "ttft_ms_p99": pick("time_to_first_token_ms", "p99"),
        "gap_ms_p50": None,  # it keeps no gaps
        "gap_ms_p99": None,
        "tpot_ms_p50": pick("inter_token_latency_ms", "p50"),
        "tokens_per_request": pick("output_token_count", "mean"),
        "requests_ok": totals.get("successful"),
        "requests_failed": totals.get("errored"),
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _python_beside(script: str) -> str:
    beside = Path(script).parent / "python"
    return str(beside) if beside.exists() else sys.executable


def _version_of(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or "unknown"


def describe(peer: Peer, folder: Path) -> Figures | str:
    """Return what a tool reported, or why it cannot be read."""
    try:
        return peer.read(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"no report that can be read ({type(error).__name__}: {error})"


def last_words(text: str) -> str:
    """Return the end of what a tool printed, for a failure; boxes drawn around it are left out."""
    lines = (line.strip(" │╭╰─╮╯") for line in text.splitlines())
    return " | ".join([line for line in lines if line][-12:])[-600:]


def make_peers(found: dict[str, Any]) -> tuple[list[Peer], list[str]]:
    """Return the peers that were named, and the names of those that were not."""
    makers = {"vllm_python": find_vllm, "guidellm": find_guidellm, "aiperf": find_aiperf}
    named = [make(found[key]) for key, make in makers.items() if found.get(key)]
    return named, [key for key in makers if not found.get(key)]
