"""`draftproof costs`: its options, its outcome on a terminal, and what an interruption leaves."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.console import (
    INTERRUPTED_CODE,
    JsonOption,
    PlanArgument,
    console_progress,
    fresh_directory,
    model_resolver,
    print_json,
    print_text,
)
from draftproof.core.errors import UsageError

_Out = Annotated[Path | None, typer.Option("--out", help="Folder to create.", show_default=False)]
_Lengths = Annotated[str, typer.Option("--draft-lengths", help="Tokens drafted a step, with commas.")]
_Batches = Annotated[str, typer.Option("--batches", help="Requests in flight at once, with commas.")]
_Repeats = Annotated[int, typer.Option("--repeats", help="Waves of each batch size in every start.")]
_Tokens = Annotated[int, typer.Option("--answer-tokens", help="Tokens of every answer.")]
_Acceptance = Annotated[
    float, typer.Option("--acceptance", help="Acceptance for which the longest drafting time is told.")
]
_Run = Annotated[
    Path | None,
    typer.Option(
        "--run", help="Run whose tokens per step are set beside the break-even.", show_default=False
    ),
]
_Split = Annotated[
    bool,
    typer.Option(
        "--split/--no-split",
        help="Also time n-gram drafts where nothing else tells drafting from verification.",
    ),
]
_Synthetic = Annotated[
    bool,
    typer.Option(
        "--synthetic/--no-synthetic",
        help="Let the engine accept no draft; without, a chunk of the stream is taken for a step.",
    ),
]
_Seed = Annotated[int, typer.Option("--seed", min=0, help="Draws the order of starts and waves.")]


def costs(
    plan_file: PlanArgument,
    *,
    out: _Out = None,
    draft_lengths: _Lengths = "1,2,4,8",
    batches: _Batches = "1,2,4,8",
    repeats: _Repeats = 5,
    answer_tokens: _Tokens = 96,
    acceptance: _Acceptance = 0.7,
    run: _Run = None,
    seed: _Seed = 1,
    split: _Split = True,
    synthetic: _Synthetic = True,
    as_json: JsonOption = False,
) -> None:
    """Measure what a step costs by draft length and batch size, and which acceptance would break even.

    Starts the plan's candidate once for each draft length with none of its drafts accepted.
    """
    from draftproof.explore import CostGrid, measure_costs  # noqa: PLC0415
    from draftproof.explore.page import render_costs_text  # noqa: PLC0415
    from draftproof.measure.run.progress import Interrupted  # noqa: PLC0415
    from draftproof.plan.faults import check_filled_in  # noqa: PLC0415
    from draftproof.plan.loading import load_plan  # noqa: PLC0415

    plan, text = load_plan(plan_file)
    check_filled_in(plan, str(plan_file))
    grid = CostGrid(
        draft_lengths=parse_numbers(draft_lengths, "--draft-lengths"),
        batches=parse_numbers(batches, "--batches"),
        repeats=repeats,
        answer_tokens=answer_tokens,
        acceptance=acceptance,
        seed=seed,
        split=split,
        synthetic=synthetic,
    )
    folder = out or fresh_directory(f"{plan.name}-costs")
    try:
        with console_progress() as progress:
            found = measure_costs(
                plan,
                text,
                folder,
                grid=grid,
                resolve_model=model_resolver(progress),
                progress=progress,
                run=run,
            )
    except Interrupted as stopped:
        sys.stderr.write(_describe_stop(stopped.done, stopped.total, folder))
        raise typer.Exit(INTERRUPTED_CODE) from stopped
    if as_json:
        print_json(found)
        return
    print_text(render_costs_text(found))
    print_text(f"Page: {(folder / 'costs.html').resolve()}")


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers of a list with commas, in rising order.

    Raises UsageError: a part is no whole number.
    """
    try:
        return tuple(sorted(int(part) for part in text.split(",")))
    except ValueError as error:
        raise UsageError(
            f"is {text!r}, allowed are whole numbers with commas", place=option, fix="such as 1,2,4,8"
        ) from error


def _describe_stop(done: int, total: int, folder: Path) -> str:
    if not done:
        return "Stopped before this call measured anything.\n"
    waves = folder / "waves.jsonl"
    return f"Stopped after {done} of {total} waves; they lie in {waves}. Start again for costs.\n"
