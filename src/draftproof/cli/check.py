"""`draftproof check`: contract, compatibility and comparability before anything is measured."""

import typer

from draftproof.cli.console import (
    JsonOption,
    PlanArgument,
    interruptible,
    model_resolver,
    print_either,
)
from draftproof.core.errors import UsageError


def check(plan_file: PlanArgument, *, as_json: JsonOption = False) -> None:
    """Start the arms, check contract, compatibility and comparability, and stop before measuring."""
    from draftproof.measure.run.check import check_plan  # noqa: PLC0415
    from draftproof.plan.faults import check_filled_in  # noqa: PLC0415
    from draftproof.plan.limits import check_budgets  # noqa: PLC0415
    from draftproof.plan.loading import load_plan  # noqa: PLC0415

    plan, _ = load_plan(plan_file)
    check_filled_in(plan, str(plan_file))
    check_budgets(plan)
    with interruptible() as progress:
        report = check_plan(plan, model_resolver(progress), progress)
    print_either(report, report.text, as_json=as_json)
    raise typer.Exit(0 if report.is_ready else UsageError.exit_code)
