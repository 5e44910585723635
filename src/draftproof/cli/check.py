"""`draftproof check`: what rules an adoption out, what makes one unlikely, and what the run will take."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.console import (
    JsonOption,
    PlanArgument,
    QuietOption,
    interruptible,
    model_resolver,
    print_either,
)
from draftproof.core.errors import UsageError

if TYPE_CHECKING:
    from draftproof.measure.run.check import CheckReport

_NULL = "baseline_null"


def check(
    plan_file: PlanArgument,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Prompts, files and flags only: start no service.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check a plan: prompts, files and flags first, then the services, started and stopped.

    Measures nothing. Exits with 0 where the run can begin, 2 where it cannot; the last line says whether it
    could decide anything.
    """
    from draftproof.measure.run.check import check_plan  # noqa: PLC0415
    from draftproof.plan.faults import check_filled_in  # noqa: PLC0415
    from draftproof.plan.limits import check_budgets  # noqa: PLC0415
    from draftproof.plan.loading import load_plan  # noqa: PLC0415
    from draftproof.tell.report.write import wrap_line  # noqa: PLC0415

    plan, _ = load_plan(plan_file)
    check_filled_in(plan, str(plan_file))
    check_budgets(plan)
    with interruptible(lines=True, quiet=quiet) as progress:
        report = check_plan(plan, model_resolver(progress), progress, quick=quick)
    print_either(
        report, lambda: "\n".join(chain.from_iterable(map(wrap_line, _render(report)))), as_json=as_json
    )
    raise typer.Exit(UsageError.exit_code if report.has_errors else 0)


def _render(report: "CheckReport") -> Iterator[str]:
    yield (
        f"Plan {report.plan}: {report.items:,} prompts in {len(report.segments)} segments, "
        f"{report.requests:,} requests."
    )
    yield from _render_arms(report)
    yield from _section("Rules an adoption out", report.ruled_out)
    yield from _section("Makes one unlikely", report.unlikely)
    yield from _section("It will take", (*report.effort, *report.workers))
    yield ""
    yield _conclude(report)


def _render_arms(report: "CheckReport") -> Iterator[str]:
    """Yield what each arm is; the null arm is the baseline once more."""
    counted = set(report.counting.values())
    for contract in report.contracts:
        if contract.arm == _NULL:
            continue
        yield f"  {contract.arm}: {contract.algorithm}"
        yield from _render_differences(report.differences[contract.arm])
        yield from (f"    forced by its method and charged to it: {one}" for one in contract.forced)
        if len(counted) > 1 and contract.arm in report.counting:
            yield f"    tokens counted by {report.counting[contract.arm]}"
        if contract.arm == "candidate":
            yield f"    output equivalence: {contract.equivalence or 'not known'}"
            yield f"    if drafting fails: {contract.fallback}"
    if len(counted) == 1:
        yield f"  tokens counted by {counted.pop()}"


def _render_differences(differences: Sequence[str]) -> Iterator[str]:
    """Yield how an arm differs; what only an arm that drafts has at all is counted beside its method."""
    own = [one for one in differences if one.startswith("speculation.") and ": absent -> " in one]
    yield from (f"    differs: {one}" for one in differences if one not in own)
    if own:
        names = ", ".join(one.partition(":")[0].removeprefix("speculation.") for one in own)
        yield f"    has settings of its own: {names}"


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from ("", title)
        yield from (f"  {number}. {line}" for number, line in enumerate(lines, start=1))


def _conclude(report: "CheckReport") -> str:
    if report.has_errors:
        return "Not ready: the run cannot begin before this is fixed."
    if not report.can_decide:
        return "Not ready: it would run, and could only be inconclusive."
    if not report.is_whole:
        return (
            "Nothing rules an adoption out so far. Next: the same without --quick, which starts the services."
        )
    return "Ready: a verdict is possible."
