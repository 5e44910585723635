"""Does an approval hold for the service that runs there? Its facts against those of the package.

The arm of a plan is started, or attached to, and asked what it is; nothing is measured. Only changes that the
package's own plan declares as triggers void the approval. What a service does not disclose is named, and is
neither a change nor the absence of one.
"""

import asyncio
import os
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec
import uvloop

from draftproof.core.errors import UsageError
from draftproof.core.manifests import ArmManifest, Manifest
from draftproof.judge.compare.comparison import ArmFacts, FactChange, Setting, find_triggers
from draftproof.judge.compare.configuration import compare_arm_facts, find_arm_facts
from draftproof.judge.results.run import APPROVING, Decision
from draftproof.measure.run.check import ModelResolver, resolve_target
from draftproof.measure.run.progress import Progress, stop_on_signal
from draftproof.measure.run.service_group import RunningArm
from draftproof.plan.environment import find_secrets, resolve_plan
from draftproof.plan.schema import Plan
from draftproof.plan.tables import Approval, ChangeTrigger
from draftproof.services.arms.contract import build_contract
from draftproof.services.arms.launch import list_arms
from draftproof.services.arms.model_files import load_drafter_facts, load_target_facts, locate_drafter
from draftproof.services.engines import adapter_for

ARM = "candidate"
ApprovalState = Literal["holds", "void", "nothing_approved", "unknown"]
# The program's place on a machine, and where that machine keeps the model, are no flags of the service.
_PLACES = frozenset({"launch"})
_NAMES = frozenset({"served_model"})


class DeploymentReport(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks against an approval.

    `decision` is the package's verdict: one that approves nothing leaves nothing to hold. `voided` names the
    declared triggers that fired, `facts` what differs (before: as approved). `unknown` names declared
    triggers that are not known, for want of `undisclosed` among others; `undeclared` those that fired and
    that the plan does not declare.
    """

    arm: str
    decision: Decision
    voided: tuple[str, ...]
    ended: str | None
    unknown: tuple[str, ...]
    undeclared: tuple[str, ...]
    undisclosed: tuple[str, ...]
    facts: tuple[FactChange, ...]

    told: int = 0  # declared triggers that are known to have fired or not

    @property
    def state(self) -> ApprovalState:
        """Whether the approval holds; where no declared trigger is known, neither is that."""
        if self.decision not in APPROVING:
            return "nothing_approved"
        if self.voided or self.ended is not None:
            return "void"
        return "holds" if self.told else "unknown"

    @property
    def holds(self) -> bool:
        """Whether there is an approval and it holds as far as is known."""
        return self.state == "holds"


def attach_candidate(plan: Plan, url: str) -> Plan:
    """Return a plan whose candidate is the service that runs at an address; nothing of it is started."""
    candidate = plan.arms.candidate.model_copy(update={"url": url, "command": None, "metrics_urls": ()})
    return plan.model_copy(update={"arms": plan.arms.model_copy(update={"candidate": candidate})})


def gather_facts(plan: Plan, resolve_model: ModelResolver, progress: Progress) -> ArmFacts:
    """Start or attach to the candidate of a plan, ask it what it is, and stop it.

    Raises EngineError: it does not start or answer; UsageError: the plan or the model cannot be used;
    Interrupted: the user wants to leave.
    """
    model = resolve_target(plan, resolve_model)
    with TemporaryDirectory(prefix="draftproof-deployment-") as folder:
        progress.phase(f"Asking the {ARM} what it is")
        manifest = uvloop.run(_ask(plan, model, Path(folder)))
    plan = resolve_plan(plan, os.environ, find_secrets(list_arms(plan).values(), os.environ))
    arm = list_arms(plan)[ARM]
    key = f"arms.{ARM}.drafter.path"
    drafter = locate_drafter(arm)
    contract = build_contract(
        manifest,
        plan,
        arm,
        adapter_for(arm.engine),
        target=load_target_facts(model) if model else None,
        draft=load_drafter_facts(drafter, key) if drafter else None,
    )
    return ArmFacts(manifest=manifest, contract=contract)


async def _ask(plan: Plan, model: Path | None, logs: Path) -> ArmManifest:
    running = RunningArm(
        ARM,
        list_arms(plan)[ARM],
        plan,
        model=model,
        log_path=logs / f"{ARM}.log",
        environment=os.environ,
    )
    with stop_on_signal() as stop:
        try:
            return (await running.start(stop)).manifest
        finally:
            await asyncio.shield(running.process.stop())


def compare_deployment(
    package: Manifest, approval: Approval, running: ArmFacts, today: date, decision: Decision
) -> DeploymentReport:
    """Return what speaks against an approval. Pure.

    Raises UsageError: the package has no candidate to compare with. `running` is the service as it is now,
    `decision` the package's verdict.
    """
    approved = find_arm_facts(package, ARM)
    if approved.manifest is None or running.manifest is None:
        raise UsageError(f"the package says nothing of its {ARM}.", fix="pack a run that measured one.")
    undisclosed = _list_undisclosed(approved.manifest, running.manifest)
    before, after = _align(approved, running, undisclosed)
    found = _find_changes(before, after, is_partial=bool(undisclosed))
    declared = approval.change_triggers
    return DeploymentReport(
        arm=ARM,
        decision=decision,
        told=sum(found[name] is not None for name in declared),
        voided=tuple(name for name in declared if found[name]),
        ended=_find_end(approval, today),
        unknown=tuple(name for name in declared if found[name] is None),
        undeclared=tuple(name for name, value in found.items() if value and name not in declared),
        undisclosed=undisclosed,
        facts=compare_arm_facts(ARM, before, after),
    )


def check_end(approval: Approval, today: date, decision: Decision) -> DeploymentReport | None:
    """Return a report of an approval that has ended by its own date, None of one that has not. Pure."""
    ended = _find_end(approval, today)
    if ended is None:
        return None
    return DeploymentReport(
        arm=ARM,
        decision=decision,
        voided=(),
        ended=ended,
        unknown=(),
        undeclared=(),
        undisclosed=(),
        facts=(),
    )


def _find_end(approval: Approval, today: date) -> str | None:
    last = approval.valid_until
    return last.isoformat() if last is not None and today > last else None


def _find_changes(
    before: ArmFacts, after: ArmFacts, *, is_partial: bool
) -> Mapping[ChangeTrigger, bool | None]:
    fired = find_triggers(before, after)
    flags = None if fired.flags is False and is_partial else fired.flags
    return {
        "version": fired.version,
        "model_hash": fired.model_hash,
        "drafter_hash": fired.drafter_hash,
        "flags": flags,
        "tokenizer": _has_new_tokenizer(before, after),
        "accelerator": fired.accelerator,
        "driver": fired.driver,
        "libraries": fired.libraries,
        "kernels": fired.kernels,
    }


def _has_new_tokenizer(before: ArmFacts, after: ArmFacts) -> bool | None:
    hashes = [one.contract.tokenizer_sha256 if one.contract else None for one in (before, after)]
    return None if None in hashes else hashes[0] != hashes[1]


def _list_undisclosed(approved: ArmManifest, running: ArmManifest) -> tuple[str, ...]:
    """Return the settings that only one side tells because the other was attached to, not started."""
    old, new = _settings(approved), _settings(running)
    lacking = set[str]()
    if running.command is None:
        lacking |= old.keys() - new.keys()
    if approved.command is None:
        lacking |= new.keys() - old.keys()
    return tuple(sorted(lacking))


def _settings(manifest: ArmManifest) -> dict[str, Setting]:
    return {key: value for key, value in manifest.settings.items() if key not in _PLACES}


def _align(approved: ArmFacts, running: ArmFacts, undisclosed: tuple[str, ...]) -> tuple[ArmFacts, ArmFacts]:
    """Return both sides without what says where things lie and not what they are."""
    same_model = _same_hash(approved, running, "target_sha256")
    hidden = {*undisclosed, *(_NAMES if same_model else ())}
    before, after = (_reduce(one, hidden) for one in (approved, running))
    if same_model and before.contract is not None and after.contract is not None:
        named = msgspec.structs.replace(
            after.contract,
            target_model=before.contract.target_model,
            target_revision=before.contract.target_revision,
        )
        after = msgspec.structs.replace(after, contract=named)
    return before, after


def _same_hash(before: ArmFacts, after: ArmFacts, field: str) -> bool:
    if before.contract is None or after.contract is None:
        return False
    old: str | None = getattr(before.contract, field)
    return old is not None and old == getattr(after.contract, field)


def _reduce(facts: ArmFacts, hidden: set[str]) -> ArmFacts:
    """A command is compared through the settings that it makes: its paths are those of its machine."""
    if facts.manifest is None:
        return facts
    settings = {key: value for key, value in _settings(facts.manifest).items() if key not in hidden}
    contract = facts.contract and msgspec.structs.replace(facts.contract, confounds=(), forced=())
    manifest = msgspec.structs.replace(facts.manifest, settings=settings, command=None, url="")
    return ArmFacts(manifest=manifest, contract=contract)
