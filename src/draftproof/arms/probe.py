"""Proof that a service speculates: one greedy request whose answer copies its prompt, and its counters."""

from typing import Any

import aiohttp
import msgspec

from draftproof.arms.manifest import REFERENCE_ENGINE, SERVED_MODEL_KEY
from draftproof.errors import EngineError
from draftproof.records import ArmManifest
from draftproof.telemetry.scrape import fetch_exposition

_TEXT = "The red lamp stands on the long table. The blue lamp stands on the long table. "
_PROMPT = f"Copy this text word for word, and then copy it once more.\n\n{_TEXT * 3}"
_ANSWER_TOKENS = 48
_STEP_COUNTERS = ("spec_decode_num_drafts_total", "spec_decode_num_drafts")


class ProbeResult(msgspec.Struct, frozen=True):
    """Verification steps of the probe, None where nothing discloses them; `source` says what was asked."""

    num_spec_steps: int | None
    source: str


async def probe_speculation(
    session: aiohttp.ClientSession, manifest: ArmManifest, timeout_s: float
) -> ProbeResult:
    """Send the probe and read the steps from the answer's metrics block, else from the service's counters.

    The counters are those of the whole service: nothing else may use it meanwhile.

    Raises:
        EngineError: the service refuses the request, does not answer, or answers something else.
    """
    before = await _fetch_step_counter(session, manifest.url)
    answer = await _ask(session, manifest, timeout_s)
    block = answer.get("metrics")
    counters = block.get("speculative_decoding") if isinstance(block, dict) else None
    if isinstance(counters, dict) and isinstance(counters.get("num_spec_steps"), int):
        return ProbeResult(counters["num_spec_steps"], "metrics block of the answer")
    if isinstance(block, dict) and manifest.engine == REFERENCE_ENGINE:
        # The reference engine leaves the counters out where nothing may draft.
        return ProbeResult(0, "metrics block of the answer")
    after = await _fetch_step_counter(session, manifest.url)
    if before is None or after is None or after < before:
        return ProbeResult(None, "neither a metrics block in the answer nor Prometheus counters")
    return ProbeResult(round(after - before), "Prometheus counters")


async def _ask(session: aiohttp.ClientSession, manifest: ArmManifest, timeout_s: float) -> dict[str, Any]:
    url = f"{manifest.url}/v1/chat/completions"
    body = {
        "model": manifest.settings.get(SERVED_MODEL_KEY),
        "messages": [{"role": "user", "content": _PROMPT}],
        "temperature": 0,
        "max_tokens": _ANSWER_TOKENS,
        "stream": False,
    }
    try:
        async with session.post(url, json=body, timeout=aiohttp.ClientTimeout(total=timeout_s)) as response:
            data = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(
            f"arm {manifest.arm} does not answer a test request ({type(error).__name__}).", place=url
        ) from error
    if response.status != 200:
        said = data[:200].decode("utf-8", "replace")
        raise EngineError(
            f"arm {manifest.arm} refuses a test request (status {response.status}: {said}).", place=url
        )
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(f"arm {manifest.arm} does not answer in JSON ({error}).", place=url) from error


async def _fetch_step_counter(session: aiohttp.ClientSession, url: str) -> float | None:
    """Return the service's count of drafting steps, None where it states none."""
    try:
        exposition = await fetch_exposition(session, url)
    except EngineError:
        return None
    found = [
        value
        for series, value in exposition.values.items()
        if series.partition("{")[0].partition(":")[2] in _STEP_COUNTERS
    ]
    return sum(found) if found else None
