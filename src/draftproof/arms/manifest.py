"""What an arm really is: engine, version and settings, asked of the running service.

Network only; comparing manifests is comparability.py.
"""

from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from draftproof.errors import EngineError
from draftproof.plan.schema import Arm
from draftproof.records import ArmManifest

Settings = dict[str, str | int | float | bool | None]

REFERENCE_ENGINE = "draftproof-reference"
SERVED_MODEL_KEY = "served_model"
_TIMEOUT = aiohttp.ClientTimeout(total=10)
# The plan names every drafting setting under `speculation.`; the service states these without it.
_PLAN_NAMES = {name: f"speculation.{name}" for name in ("ngram_min", "ngram_max", "ngram_shared_tokens")}


async def fetch_manifest(
    session: aiohttp.ClientSession,
    name: str,
    arm: Arm,
    url: str,
    *,
    command: tuple[str, ...] | None = None,
    load_time_s: float | None = None,
    resident_bytes: int | None = None,
) -> ArmManifest:
    """Return the manifest of a running arm.

    The reference engine states all its settings. Of another engine only the model list and perhaps the
    version can be asked for: its settings are those that the plan states.

    Raises:
        EngineError: the service does not answer as it must, or is another engine than the plan says.
    """
    model = await _fetch_model(session, name, arm, url)
    version = await _fetch_json(session, f"{url}/version")
    stated: Mapping[str, Any] = version if isinstance(version, dict) else {}
    is_reference = stated.get("engine") == REFERENCE_ENGINE
    if arm.engine == "reference" and not is_reference:
        raise EngineError(
            f"arm {name} says it is {stated.get('engine', 'no engine we know')!r}, not the reference engine.",
            place=url,
            fix=f'set arms.{name}.engine = "generic", or check the address.',
        )
    settings: Settings = _normalise(stated.get("config", {})) if is_reference else {**arm.settings}
    return ArmManifest(
        arm=name,
        engine=REFERENCE_ENGINE if is_reference else str(stated.get("engine", "generic")),
        engine_version=str(stated.get("version", "unknown")),
        command=command,
        url=url,
        settings=model | settings,
        load_time_s=load_time_s,
        resident_bytes=resident_bytes,
    )


async def _fetch_model(session: aiohttp.ClientSession, name: str, arm: Arm, url: str) -> Settings:
    """Return the served model's name and, where it is disclosed, its context length in tokens."""
    listed = await _fetch_json(session, f"{url}/v1/models")
    cards = listed.get("data") if isinstance(listed, dict) else None
    models = [card for card in cards or () if isinstance(card, dict) and isinstance(card.get("id"), str)]
    if not models:
        raise EngineError(f"arm {name} lists no model.", place=f"{url}/v1/models")
    wanted = arm.served_model or models[0]["id"]
    for card in models:
        if card["id"] == wanted:
            context = card.get("max_model_len")
            limit: Settings = {"max_model_len": context} if isinstance(context, int) else {}
            return {SERVED_MODEL_KEY: wanted} | limit
    raise EngineError(
        f"arm {name} does not serve {wanted!r}.",
        place=f"{url}/v1/models",
        fix=f"use one of: {', '.join(card['id'] for card in models)}.",
    )


def _normalise(config: Mapping[str, Any]) -> Settings:
    return {
        _PLAN_NAMES.get(key, key): value if isinstance(value, str | int | float) else None
        for key, value in config.items()
    }


async def _fetch_json(session: aiohttp.ClientSession, url: str) -> Any:
    """Return the decoded body, None where the service has no such path or answers otherwise."""
    try:
        async with session.get(url, timeout=_TIMEOUT) as response:
            body = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"the service does not answer ({type(error).__name__}).", place=url) from error
    if response.status != 200:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
