"""What is wrong with a plan on this machine, found without starting anything: files, flags, context.

Each finding is a sentence with the key at fault and what to do. What a command's flags say is read as the
engine's adapter reads it; what a service really does is known once it runs.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from draftproof.core.errors import IncompatibleError
from draftproof.core.manifests import ArmManifest
from draftproof.plan.environment import resolve_references, resolve_variables
from draftproof.plan.schema import Arm, Plan
from draftproof.services.arms.comparability import check_comparable, find_known_forced
from draftproof.services.arms.launch import build_command, list_arms, plan_section
from draftproof.services.arms.request_fit import compute_needs
from draftproof.services.engines import adapter_for
from draftproof.services.engines.facts import METHOD, OFF
from draftproof.workload.items import Item

# A request of a run takes some kilobytes in the journal and again in the tables.
_BYTES_OF_REQUEST, _LEAST_FREE = 40_000, 1 << 30
# An estimate of a prompt's tokens is up to so many times too high.
_SURE_PART = 4
_NULL = "baseline_null"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that will end the run, by the key of the plan, and what to do."""

    place: str
    text: str
    fix: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}. Fix: {self.fix}."


def find_faults(plan: Plan, items: Sequence[Item], requests: int) -> tuple[Fault, ...]:
    """Return what would end a run of the plan here, as far as files and flags show it.

    `requests`: how many the run asks in all. Raises PlanError: an arm cannot be started as the plan says.
    """
    arms = {name: arm for name, arm in list_arms(plan).items() if name != _NULL}
    commands = {name: _resolve_command(name, arm, plan) for name, arm in arms.items()}
    return (
        *_find_missing_model(plan),
        *(fault for name, arm in arms.items() for fault in _find_missing_files(name, arm, commands[name])),
        *_find_flags_at_odds(plan, arms, commands),
        *_find_long_items(plan, items, arms, commands),
        *_find_full_disk(requests),
    )


def _resolve_command(name: str, arm: Arm, plan: Plan) -> tuple[str, ...]:
    """Return the command of an arm with the references to the environment resolved, none of one that runs."""
    command = build_command(name, arm, plan) or ()
    place = f"arms.{plan_section(name)}.command"
    return tuple(resolve_references(word, os.environ, place) for word in command)


def _find_missing_model(plan: Plan) -> Iterator[Fault]:
    model = resolve_references(plan.target.model, os.environ, "target.model")
    if model.startswith(("/", "./", "../", "~")) and not Path(model).expanduser().exists():
        yield Fault(
            place="target.model", text=f"there is no {model}", fix="correct the path, or name a model id"
        )


def _find_missing_files(name: str, arm: Arm, command: Sequence[str]) -> Iterator[Fault]:
    if arm.url is not None or not command:
        return
    place = f"arms.{name}"
    env = dict(resolve_variables(arm.env, os.environ, f"{place}.env"))
    if shutil.which(command[0], path=env.get("PATH")) is None:
        yield Fault(
            place=f"{place}.command",
            text=f"there is no program {command[0]!r} here",
            fix="install it, or name it by its path",
        )
    for path in filter(None, env.get("LD_PRELOAD", "").replace(":", " ").split()):
        if path.startswith("/") and not Path(path).exists():
            yield Fault(
                place=f"{place}.env.LD_PRELOAD", text=f"there is no {path}", fix="correct or remove it"
            )
    drafter = arm.drafter.get("path")
    if drafter is not None and not drafter.startswith("${") and not Path(drafter).exists():
        yield Fault(place=f"{place}.drafter.path", text=f"there is no {drafter}", fix="correct the path")


def _find_flags_at_odds(
    plan: Plan, arms: Mapping[str, Arm], commands: Mapping[str, tuple[str, ...]]
) -> Iterator[Fault]:
    """Yield undeclared differences between commands, and a candidate that drafts nothing."""
    launched = {name: arm for name, arm in arms.items() if commands[name] and arm.engine != "reference"}
    read = {name: _read_flags(name, arm, commands[name]) for name, arm in launched.items()}
    yield from _find_same(arms["candidate"], arms["baseline"], commands)
    candidate = read.get("candidate")
    if candidate is not None and candidate.settings.get(METHOD) == OFF:
        yield Fault(
            place="arms.candidate.command",
            text="its flags switch no speculation on",
            fix="add them, as `draftproof init` does",
        )
    if "baseline" not in read:
        return
    for name in read.keys() - {"baseline"}:
        adapter = adapter_for(launched[name].engine)
        method = read[name].settings.get(METHOD)
        forced = find_known_forced(adapter, None if method is None else str(method))
        try:
            check_comparable([read["baseline"], read[name]], plan.comparison, {name: forced})
        except IncompatibleError as error:
            yield Fault(
                place=f"arms.{name}", text=error.message.rstrip("."), fix=(error.fix or "").rstrip(".")
            )


def _find_same(own: Arm, today: Arm, commands: Mapping[str, tuple[str, ...]]) -> Iterator[Fault]:
    """Yield a candidate that starts the baseline over again; two arms at one address are the preflight's."""
    said = [(one.settings, one.request, one.served_model, one.env) for one in (own, today)]
    if own.url is None and said[0] == said[1] and commands["candidate"] == commands["baseline"]:
        yield Fault(
            place="arms.candidate",
            text="it is the baseline over again",
            fix="state how it differs: words to add to the command, settings, or another address",
        )


def _read_flags(name: str, arm: Arm, command: tuple[str, ...]) -> ArmManifest:
    """Return an arm of which nothing is known but its plan and its command."""
    return ArmManifest(
        arm=name,
        engine=arm.engine,
        engine_version="",
        command=command,
        url="",
        settings={**arm.settings, **adapter_for(arm.engine).read_flags(command)},
    )


def _find_long_items(
    plan: Plan, items: Sequence[Item], arms: Mapping[str, Arm], commands: Mapping[str, tuple[str, ...]]
) -> Iterator[Fault]:
    """Yield arms whose command bounds the context to less than an item surely needs, prompt and answer."""
    needs = compute_needs(items, plan.workload.max_tokens)
    for name, arm in arms.items():
        limit = adapter_for(arm.engine).find_context(commands[name]) if commands[name] else None
        if limit is None:
            continue
        long = [one for one in needs if one.answer_tokens + one.prompt_tokens // _SURE_PART >= limit]
        if long:
            worst = max(long, key=lambda one: one.total_tokens)
            yield Fault(
                place=f"arms.{name}",
                text=f"its context of {limit} tokens has no room for {len(long)} of {len(needs)} prompts and "
                f"their answers; the longest takes about {worst.prompt_tokens} and {worst.answer_tokens}",
                fix="raise the context, set workload.max_tokens, or leave these prompts out",
            )


def _find_full_disk(requests: int) -> Iterator[Fault]:
    free, wanted = shutil.disk_usage(Path.cwd()).free, max(_LEAST_FREE, requests * _BYTES_OF_REQUEST)
    if free < wanted:
        yield Fault(
            place=str(Path.cwd()),
            text=f"the disk has {free / 1e9:.1f} GB left, and the run may take {wanted / 1e9:.1f}",
            fix="free some, or write the run elsewhere with --out",
        )
