"""What changed in the configuration: engine, settings, contract, workload, thresholds, host, findings. Pure.

Facts that differ from run to run by nature (ports, start-up times, memory, the clock) are not compared.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from draftproof.core.build import name_build
from draftproof.core.manifests import ArmManifest, Contract, Manifest
from draftproof.judge.compare.comparison import (
    ArmFacts,
    FactChange,
    FactGroup,
    Scalar,
    list_flags,
    normalise_command,
)
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.plan.load import LoadLevel

PRESENT = "measured"
# The engine's name and version are in the manifest too; lists are compared entry by entry.
_CONTRACT_REPEATS = frozenset({"arm", "runtime", "runtime_version"})


def find_arm_facts(manifest: Manifest, arm: str) -> ArmFacts:
    """Return what a run keeps of an arm."""
    return ArmFacts(
        manifest=next((one for one in manifest.arms if one.arm == arm), None),
        contract=next((one for one in manifest.contracts if one.arm == arm), None),
    )


def compare_run_facts(before: PreparedRun, after: PreparedRun) -> tuple[FactChange, ...]:
    """Return the facts of the runs as a whole that differ, the measuring program's own version among them."""
    groups: dict[FactGroup, Callable[[PreparedRun], Mapping[str, Scalar | None]]] = {
        "workload": lambda one: {
            "name": one.run.manifest.workload_name,
            "version": one.run.manifest.workload_version,
            "sha256": one.run.manifest.workload_sha256,
            "items": len(one.run.items),
            "max_tokens": one.plan.workload.max_tokens,
        },
        "thresholds": _thresholds,
        "load": _loads,
        "host": lambda one: one.run.manifest.host,
        "measurement": lambda one: {
            "draftproof": name_build(one.run.manifest.draftproof_version, one.run.manifest.source_sha256),
            "seed": one.run.manifest.seed,
            "evidence": one.run.manifest.evidence,
            "placement": one.plan.placement,
        },
    }
    found = (_compare(None, group, read(before), read(after)) for group, read in groups.items())
    old, new = before.run.manifest.findings, after.run.manifest.findings
    return (*chain.from_iterable(found), *_compare_lists(None, "findings", "finding", old, new))


def compare_arm_facts(arm: str, before: ArmFacts, after: ArmFacts) -> tuple[FactChange, ...]:
    """Return the facts of one arm that differ."""
    groups: dict[FactGroup, Callable[[ArmManifest], Mapping[str, Scalar | None]]] = {
        "engine": _engine,
        "settings": lambda one: dict(sorted(list_flags(one).items())),
        "platform": lambda one: one.platform,
    }
    manifests = [one.manifest for one in (before, after)]
    found = (
        _compare(arm, group, *({} if one is None else read(one) for one in manifests))
        for group, read in groups.items()
    )
    return (
        *chain.from_iterable(found),
        *_compare(arm, "contract", _contract(before.contract), _contract(after.contract)),
        *_compare_contract_lists(arm, before.contract, after.contract),
    )


def compare_arm_names(before: Iterable[str], after: Iterable[str]) -> tuple[FactChange, ...]:
    """Return the arms that only one of the runs has."""
    return tuple(_compare(None, "arms", dict.fromkeys(before, PRESENT), dict.fromkeys(after, PRESENT)))


def _compare(
    arm: str | None,
    group: FactGroup,
    before: Mapping[str, Scalar | None],
    after: Mapping[str, Scalar | None],
) -> Iterator[FactChange]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old != new or type(old) is not type(new):
            yield FactChange(arm=arm, group=group, key=key, before=old, after=new)


def _compare_lists(
    arm: str | None, group: FactGroup, key: str, before: Iterable[str], after: Iterable[str]
) -> Iterator[FactChange]:
    old, new = tuple(before), tuple(after)
    for text in old:
        if text not in new:
            yield FactChange(arm=arm, group=group, key=key, before=text, after=None)
    for text in new:
        if text not in old:
            yield FactChange(arm=arm, group=group, key=key, before=None, after=text)


def _compare_contract_lists(
    arm: str, before: Contract | None, after: Contract | None
) -> Iterator[FactChange]:
    names: dict[str, FactGroup] = {
        "tokenizer_differences": "contract",
        "unsupported_features": "contract",
        "confounds": "confounds",
        "forced": "confounds",
    }
    for name, group in names.items():
        yield from _compare_lists(
            arm, group, name, getattr(before, name, None) or (), getattr(after, name, None) or ()
        )


def _engine(manifest: ArmManifest) -> dict[str, Scalar | None]:
    """The address counts only where the run attached to a service: a port of its own says nothing."""
    attached = {} if manifest.command is not None else {"url": manifest.url}
    return {
        "engine": manifest.engine,
        "engine_version": manifest.engine_version,
        "command": normalise_command(manifest),
        **attached,
    }


def _contract(contract: Contract | None) -> Mapping[str, Scalar | None]:
    if contract is None:
        return {}
    facts = msgspec.structs.asdict(contract)
    return {
        key: value
        for key, value in facts.items()
        if key not in _CONTRACT_REPEATS and not isinstance(value, tuple)
    }


def _thresholds(prepared: PreparedRun) -> Mapping[str, Scalar | None]:
    plan = prepared.plan
    parts = {"thresholds": plan.thresholds, "comparison": plan.comparison, "objectives": plan.objectives}
    named = {f"{part}.{key}": value for part, one in parts.items() for key, value in one.model_dump().items()}
    texts = {
        key: ", ".join(value) if isinstance(value, tuple | list) else value for key, value in named.items()
    }
    return {"sha256": prepared.run.manifest.thresholds_sha256} | texts


def _loads(prepared: PreparedRun) -> Mapping[str, Scalar | None]:
    levels = prepared.plan.load
    return (
        {f"{level.name}.concurrency": level.concurrency for level in levels if level.concurrency is not None}
        | {f"{level.name}.{key}": value for level in levels for key, value in _arrivals(level).items()}
        | {f"{level.name}.repeats": level.repeats for level in levels}
    )


def _arrivals(level: LoadLevel) -> dict[str, Scalar]:
    """Return how requests come beyond a plain closed loop, flat; classes as one text."""
    stated = level.model_dump(include={"arrivals", "replay"}, exclude_none=True)
    found: dict[str, Scalar] = dict(_flatten(stated))
    if level.classes:
        found["classes"] = ", ".join(f"{name} {share:g}" for name, share in sorted(level.classes.items()))
    return found | ({"think_s": level.think_s} if level.think_s else {})


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, tuple) else value
