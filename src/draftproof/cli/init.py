"""`draftproof init`: a commented plan to start from, the demo's or one for an engine and a method."""

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.console import print_text
from draftproof.core.errors import StoreError, UsageError


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
    from draftproof.cli import new_plan  # noqa: PLC0415
    from draftproof.plan.faults import PLACEHOLDER  # noqa: PLC0415
    from draftproof.plan.loading import load_builtin_plan  # noqa: PLC0415

    units = new_plan.read_units(timestamp_unit, block_tokens)
    if engine is None:
        if trace is not None or not method is model is draft is None:
            raise UsageError(
                "--method, --model, --draft and --trace are an engine's.",
                fix=f"add --engine: {', '.join(new_plan.METHODS)}",
            )
        text = load_builtin_plan("demo")[1]
    else:
        # A plan names such a service generic, a person by the protocol that it speaks.
        engine = "openai" if engine == "generic" else engine
        wanted = new_plan.Wanted(engine=engine, method=method, model=model, draft=draft, units=units)
        text = new_plan.render_new_plan(new_plan.add_trace(wanted, trace))
    _write_new(out, text)
    first = f"fill in every {PLACEHOLDER} in it, then " if PLACEHOLDER in text else ""
    print_text(f"Wrote {out}. Next: {first}draftproof check {out}")


def _write_new(out: Path, text: str) -> None:
    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise UsageError("the file exists", place=str(out), fix="choose another name with --out") from error
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror}", place=str(out)) from error
