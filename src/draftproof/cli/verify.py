"""`draftproof verify`: the check of a package, and of an approval against what runs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from draftproof.cli.console import (
    JsonOption,
    console_progress,
    interruptible,
    model_resolver,
    print_json,
    print_text,
)
from draftproof.core.errors import UsageError

if TYPE_CHECKING:
    from draftproof.judge.compare.comparison import FactChange
    from draftproof.operate.deployment import DeploymentReport
    from draftproof.tell.handover.verifying import Opened, VerifyReport

_HEADS = {
    "holds": "APPROVAL HOLDS, as far as can be told",
    "void": "APPROVAL VOID",
    "unknown": "NOT KNOWN WHETHER THE APPROVAL HOLDS: no change trigger can be told",
    "nothing_approved": "NOTHING APPROVED: the verdict is {}, and there is nothing to hold",
}
NOT_VERIFIED_CODE, VOID_CODE = 50, 51


def verify(
    path: Annotated[Path, typer.Argument(metavar="PACKAGE", help="A package (.tar).", show_default=False)],
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--public-key",
            help="The signer's Ed25519 public key (PEM or OpenSSH), known before.",
            show_default=False,
        ),
    ] = None,
    signature: Annotated[
        Path | None, typer.Option("--signature", help="Signature file.", show_default="PACKAGE.sig")
    ] = None,
    deployment: Annotated[
        str | None,
        typer.Option(
            "--deployment",
            metavar="ADDRESS|PLAN",
            help="Compare a running service, by its http address, or a plan's candidate arm (started, or "
            "attached to) with the contract.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Check a package: every byte, signature, journal order, and the verdict computed again.

    0 verified, 50 not verified, 51 verified, but no approval holds for the deployment, as far as can be told,
    or it has ended.
    """
    from draftproof.tell.handover.verifying import verify_package  # noqa: PLC0415

    if signature is not None and public_key is None:
        raise UsageError("--signature needs --public-key.", fix="give the signer's public key.")
    with console_progress() as progress:
        progress.phase("Checking the package")
        report, opened = verify_package(path, public_key=public_key, signature=signature)
    compared = _compare(opened, deployment) if opened is not None else None
    if as_json:
        print_json(_Verification(report=report, deployment=compared))
    else:
        print_text(describe_report(report))
        if compared is not None:
            print_text(describe_deployment(compared))
    if not report.verified:
        raise typer.Exit(NOT_VERIFIED_CODE)
    raise typer.Exit(0 if compared is None or compared.holds else VOID_CODE)


class _Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints; `deployment` is None where nothing was compared and no approval has ended."""

    report: Any
    deployment: Any


def _compare(opened: "Opened", where: str | None) -> "DeploymentReport | None":
    """Compare a deployment with a package that was verified; without one, look at the approval's own end."""
    from draftproof.operate.deployment import (  # noqa: PLC0415
        attach_candidate,
        check_end,
        compare_deployment,
        gather_facts,
    )
    from draftproof.plan.faults import check_filled_in  # noqa: PLC0415
    from draftproof.plan.loading import load_plan  # noqa: PLC0415

    approval, today = opened.contents.plan.approval, datetime.now(tz=UTC).date()
    decision = opened.results.verdict.decision
    if where is None:
        return check_end(approval, today, decision)
    if where.startswith(("http://", "https://")):
        plan = attach_candidate(opened.contents.plan, where)
    else:
        plan, _ = load_plan(where)
        check_filled_in(plan, where)
    with interruptible() as progress:
        running = gather_facts(plan, model_resolver(progress), progress)
    return compare_deployment(opened.contents.manifest, approval, running, today, decision)


def describe_deployment(report: "DeploymentReport") -> str:
    """Return what speaks against an approval, for a terminal."""
    lines = [_HEADS[report.state].format(report.decision)]
    if report.ended is not None:
        lines.append(f"  It ended on {report.ended}.")
    lines += [f"  Changed: {name}." for name in report.voided]
    lines += [f"  Changed, and no trigger of the approved plan: {name}." for name in report.undeclared]
    lines += [
        f"    {one.group} {one.key}: {one.before} -> {one.after} ({_say_effect(one, report)})"
        for one in report.facts
    ]
    lines += [f"  Cannot be told: {name}." for name in report.unknown]
    if report.undisclosed:
        lines.append(f"    not disclosed: {', '.join(report.undisclosed)}")
    return "\n".join(lines)


def _say_effect(change: "FactChange", report: "DeploymentReport") -> str:
    """Say whether a changed fact voids the approval, and by which trigger."""
    from draftproof.judge.compare.comparison import name_trigger  # noqa: PLC0415

    trigger = name_trigger(change.group, change.key)
    if trigger in report.voided:
        return f"voids: {trigger}"
    if trigger in report.unknown:
        return f"whether {trigger} changed cannot be told"
    if trigger in report.undeclared:
        return f"voids nothing: {trigger} is no trigger of the approved plan"
    return "voids nothing: no trigger watches it"


def describe_report(report: "VerifyReport") -> str:
    """Return a report for a terminal."""
    marks = {"passed": "ok", "failed": "FAILED", "not_checked": "--"}
    lines = [f"  {marks[one.status]:<6}  {one.name}: {one.detail}." for one in report.checks]
    head = "VERIFIED" if report.verified else "NOT VERIFIED"
    if report.verified and report.authentic is None:
        head += ", not authenticated"
    if report.verified and any(one.name == "documents" for one in report.checks):
        head += ", documents not compared"
    name = f" (run {report.run_name})" if report.run_name else ""
    withheld = ["Withheld: prompts and answers are salted digests."] if report.withheld else []
    verdict = [f"Verdict: {report.decision}: {report.sentence}"] if report.verified else []
    return "\n".join([f"{head}: {report.package}{name}", *lines, *withheld, *verdict])
