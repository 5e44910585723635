"""What an arm really is: engine, version and settings, asked of the running service, its command and its log.

Network only; comparing manifests is comparability.py.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import msgspec

from draftproof.core.errors import EngineError
from draftproof.core.manifests import ArmManifest
from draftproof.core.secrets import is_secret_name
from draftproof.plan.schema import Arm
from draftproof.services.arms.comparability import ENVIRONMENT_PREFIX, REQUEST_PREFIX, UNKNOWN
from draftproof.services.arms.service import Service, explain_no_model, fetch_answer
from draftproof.services.engines import ADAPTERS, GENERIC
from draftproof.services.engines.commands import (
    find_unread_words,
    mask_secrets,
    parse_flags,
    words_before_flags,
)
from draftproof.services.engines.facts import PLATFORM, EngineFacts, Identity, Settings
from draftproof.services.engines.reference import REFERENCE_ENGINE
from draftproof.services.engines.values import as_count, decode_object

SERVED_MODEL_KEY = "served_model"
MODELS_PATH = "/v1/models"
_TIMEOUT_S = 10.0
# vLLM's /server_info gathers the environment at its first call, which takes its time.
_IDENTITY_TIMEOUT_S = 30.0
_OK, _NO_ANSWER = 200, 504
_NOT_NOW = frozenset({408, 429, 500, 502, 503, _NO_ANSWER})  # 501 says that there is no such thing


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an arm's process: command, load time, memory, output, environment, and its host.

    All empty for a service that runs already.
    """

    command: tuple[str, ...] | None = None
    load_time_s: float | None = None
    resident_bytes: int | None = None
    log: str = ""
    environment: Mapping[str, str] = {}
    platform: Mapping[str, str] = {}


class IdentityAnswers(NamedTuple):
    """What a service says of itself: path -> body, and the paths that gave no answer just now.

    A path that it lacks is in neither.
    """

    bodies: dict[str, bytes]
    silent: tuple[str, ...]


async def fetch_manifest(
    session: aiohttp.ClientSession,
    arm: Arm,
    service: Service,
    started: Started | None = None,
    *,
    answers: IdentityAnswers | None = None,
) -> ArmManifest:
    """Return the manifest of a running arm; `answers` is what it said if it was asked already.

    Where several sources tell a setting, the service itself comes first, then its log, then its command, then
    the plan. Raises EngineError: the service does not answer as it must, or is another engine than the plan
    says.
    """
    started = started or Started()
    bodies = (answers or await ask_identity(session, service)).bodies
    cards = _list_models(bodies.get(MODELS_PATH))
    if not cards and arm.served_model is None:
        raise await explain_no_model(session, service, MODELS_PATH, _TIMEOUT_S)
    model = _find_model(cards, arm, service)
    identity = service.adapter.read_identity(bodies)
    _check_engine(service, identity, bodies)
    adapter, command = service.adapter, started.command
    settings = (
        (adapter.read_flags(command) if command else {}) | adapter.read_log(started.log) | identity.settings
    )
    fields = describe_arm(arm, service.adapter.read_flags) | find_inherited(
        arm, service.adapter.facts, started.environment
    )
    # What the service says of what it runs on stands apart.
    platform = {
        key.removeprefix(PLATFORM): str(settings.pop(key)) for key in [*settings] if key.startswith(PLATFORM)
    }
    return ArmManifest(
        arm=service.arm,
        engine=identity.engine or adapter.name,
        engine_version=identity.version or UNKNOWN,
        command=mask_secrets(command) if command else None,
        url=service.url,
        settings=arm.settings | model | settings | fields,
        load_time_s=started.load_time_s,
        resident_bytes=started.resident_bytes,
        platform=dict(sorted((dict(started.platform) | platform).items())),
    )


def describe_arm(arm: Arm, read_flags: Callable[[Sequence[str]], Settings] = parse_flags) -> Settings:
    """Return what the plan itself changes in how an arm is launched and asked, as settings. Pure.

    `launch` is the program with what stands before its first flag, such as a subcommand and a model;
    `env.NAME` what the command finds in its environment; `request.NAME` further fields of every request;
    `launch.words` what else the command says. References to the environment stay references.
    """
    settings: Settings = {f"{REQUEST_PREFIX}{key}": value for key, value in arm.request.items()}
    if arm.command is not None:
        settings |= {f"{ENVIRONMENT_PREFIX}{key}": value for key, value in arm.env.items()}
        settings["launch"] = " ".join(words_before_flags(arm.command))
        if not ADAPTERS[arm.engine].facts.states_all:
            settings |= find_unread_words(arm.command, read_flags(arm.command))
    return settings


def find_inherited(arm: Arm, facts: EngineFacts, environment: Mapping[str, str]) -> Settings:
    """Return the engine's own variables that a launched command finds without the plan naming them.

    They are the same in every arm and can change what all of them do, such as accept drafts at random.
    """
    if arm.command is None or not facts.environment_prefixes:
        return {}
    return {
        f"{ENVIRONMENT_PREFIX}{name}": value
        for name, value in sorted(environment.items())
        if name.startswith(facts.environment_prefixes) and name not in arm.env and not is_secret_name(name)
    }


async def ask_identity(session: aiohttp.ClientSession, service: Service) -> IdentityAnswers:
    """Ask the addresses that tell what a service is. Raises EngineError: the service does not answer."""
    answers = {
        MODELS_PATH: await fetch_answer(session, service.path(MODELS_PATH), service.headers, _TIMEOUT_S)
    }
    for path in service.adapter.facts.identity_paths:
        # A service that lists its models is there; an address of its that does not answer in time is not.
        answers[path] = _NO_ANSWER, b""
        with contextlib.suppress(EngineError):
            answers[path] = await fetch_answer(
                session, service.path(path), service.headers, _IDENTITY_TIMEOUT_S
            )
    return IdentityAnswers(
        bodies={path: body for path, (status, body) in answers.items() if status == _OK},
        silent=tuple(path for path, (status, _) in answers.items() if status in _NOT_NOW),
    )


def _check_engine(service: Service, identity: Identity, bodies: Mapping[str, bytes]) -> None:
    """The reference engine says what it is; another must not be recognised as a third. Generic fits any.

    Raises EngineError: the service is another engine than the plan says.
    """
    wanted = service.adapter.name
    own = REFERENCE_ENGINE if wanted == "reference" else wanted
    if wanted == GENERIC.name or identity.engine == own:
        return
    others = [other.facts for other in ADAPTERS.values() if other.name not in {wanted, GENERIC.name}]
    seen = next((one.title for one in others if ADAPTERS[one.name].read_identity(bodies).engine), None)
    if wanted == "reference" or seen is not None:
        said = identity.engine or seen or "no engine we know"
        raise EngineError(
            f"arm {service.arm} says it is {said!r}, not {service.adapter.facts.title}.",
            place=service.url,
            fix=f'set arms.{service.arm}.engine to the engine that runs there, or "generic".',
        )


def _list_models(body: bytes | None) -> list[dict[str, Any]]:
    cards = decode_object(body).get("data")
    listed = cards if isinstance(cards, list) else []
    return [card for card in listed if isinstance(card, dict) and isinstance(card.get("id"), str)]


def _find_model(cards: Sequence[Mapping[str, Any]], arm: Arm, service: Service) -> Settings:
    """Return the served model's name and, where it is disclosed, its context length in tokens."""
    if not cards:
        return {SERVED_MODEL_KEY: arm.served_model or ""}
    wanted: str = arm.served_model or cards[0]["id"]
    for card in cards:
        if card["id"] == wanted:
            context = as_count(card.get("max_model_len"))
            return {SERVED_MODEL_KEY: wanted} | ({} if context is None else {"max_model_len": context})
    raise EngineError(
        f"arm {service.arm} does not serve {wanted!r}.",
        place=service.path(MODELS_PATH),
        fix=f"use one of: {', '.join(str(card['id']) for card in cards)}.",
    )
