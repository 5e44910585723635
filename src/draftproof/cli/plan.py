"""`draftproof plan`: a plan as it is used, with what every arm has; `--full` with every default."""

from typing import Annotated

import typer

from draftproof.cli.console import PlanArgument, print_text


def plan(
    plan_file: PlanArgument,
    *,
    full: Annotated[bool, typer.Option("--full", help="Every key, defaults marked.")] = False,
) -> None:
    """Print a plan as it is used: paths absolute, what arms share written into each of them."""
    from draftproof.plan.loading import load_plan, render_plan  # noqa: PLC0415

    print_text(render_plan(load_plan(plan_file)[0], defaults="marked" if full else "left_out").rstrip())
