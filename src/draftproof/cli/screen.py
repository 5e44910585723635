"""`draftproof screen`: its options, and the reference engine as the teacher that goes through the answers."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from draftproof.cli.console import (
    JsonOption,
    console_progress,
    fresh_directory,
    load_reference,
    model_resolver,
    print_either,
    print_text,
)
from draftproof.core.errors import UsageError

_Source = Annotated[Path, typer.Argument(help="A plan file, or a run folder.", show_default=False)]
_Out = Annotated[Path | None, typer.Option("--out", help="Folder to create.", show_default=False)]
_Methods = Annotated[
    str,
    typer.Option(
        "--methods", help="ngram, draft_model, attached, self; with commas. The drafters that ship."
    ),
]
_Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        help="Folder of a drafter or draft model, builtin:NAME, or layers:LIST; repeatable.",
        show_default=False,
    ),
]
_Lengths = Annotated[str, typer.Option("--k", help="Drafts a round: 1-8, or 1,2,4.")]
_CostsFile = Annotated[
    Path | None,
    typer.Option(help="What `draftproof costs` wrote: predicts the time per token.", show_default=False),
]
_Batch = Annotated[
    int | None, typer.Option(help="Batch of these costs that is shown.", show_default="the smallest")
]
_Model = Annotated[
    str | None, typer.Option(help="Folder or id of the target's weights.", show_default="the plan's target")
]
_NgramMin = Annotated[
    int | None,
    typer.Option(min=1, max=32, help="Shortest match that drafts.", show_default="the candidate's"),
]
_NgramMax = Annotated[
    int | None, typer.Option(min=1, max=32, help="Longest match looked for.", show_default="the candidate's")
]
_Match = Annotated[
    Literal["latest", "earliest"] | None,
    typer.Option(help="Which of several matches drafts.", show_default="the candidate's engine's"),
]
_Greedy = Annotated[
    bool | None,
    typer.Option(
        "--greedy-drafts/--sampled-drafts",
        help="Drafts of sampled requests are the likeliest tokens, or drawn.",
        show_default="as the candidate's engine",
    ),
]
_MaxNumSeqs = Annotated[int, typer.Option(min=1, help="Answers made at once.")]
_MaxModelLen = Annotated[
    int | None,
    typer.Option(min=8, help="Longest prompt plus answer, tokens.", show_default="the candidate's"),
]
_NumThreads = Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="torch's own")]
_MOST_DRAFTS = 64


def screen(
    source: _Source,
    *,
    out: _Out = None,
    methods: _Methods = "ngram",
    drafter: _Drafters = None,
    k: _Lengths = "1-8",
    costs: _CostsFile = None,
    batch: _Batch = None,
    model: _Model = None,
    ngram_min: _NgramMin = None,
    ngram_max: _NgramMax = None,
    ngram_match: _Match = None,
    greedy_drafts: _Greedy = None,
    max_num_seqs: _MaxNumSeqs = 16,
    max_model_len: _MaxModelLen = None,
    num_threads: _NumThreads = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many drafts would be accepted on your prompts, without decoding with drafts.

    Goes through answers of the target, a run's or its own, with drafters of the reference engine.
    """
    from draftproof.explore import screening  # noqa: PLC0415

    lengths = parse_lengths(k)
    found = screening.open_source(source)
    screening.check_rule(found)
    prices = None if costs is None else screening.load_costs(costs)
    own = screening.find_lookup(found.engine, found.settings)
    lookup = screening.Lookup(
        ngram_min=ngram_min or own.ngram_min,
        ngram_max=ngram_max or own.ngram_max,
        earliest=own.earliest if ngram_match is None else ngram_match == "earliest",
    )
    greedy = (
        screening.drafts_greedily(found.engine, found.settings) if greedy_drafts is None else greedy_drafts
    )
    job = screening.Job(draft_lengths=lengths, lookup=lookup, greedy_drafts=greedy, costs=prices)
    folder = out or fresh_directory(f"{found.plan.name}-screening")
    screening.check_free(folder)
    reference, types = load_reference("screening"), load_reference("types")
    with console_progress() as progress:
        path = model_resolver(progress)(model or screening.target_of(found))
        teacher = reference.Screener(
            types.EngineConfig(
                model_path=str(path),
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max(512, 2 * max_num_seqs),
                max_model_len=max_model_len or screening.find_context(found.settings),
                num_threads=num_threads,
                dtype=found.plan.target.dtype or "float32",
            ),
            methods=tuple(one.strip() for one in methods.split(",") if one.strip()),
            drafters=tuple(drafter or ()),
            lookup=reference.Lookup(lookup.ngram_min, lookup.ngram_max, lookup.earliest),
            greedy_drafts=greedy,
        )
        result, answers = screening.screen_source(found, teacher, job, progress)
        screening.save_screening(folder, result, answers)
    print_either(result, lambda: screening.render_screening(result, batch), as_json=as_json)
    if not as_json:
        print_text(f"Answers: {(folder / screening.TABLE_NAME).resolve()}")


def parse_lengths(text: str) -> tuple[int, ...]:
    """Return the draft lengths of `1-8`, `1,2,4` or both, in rising order.

    Raises UsageError: a part is neither a length nor a span of them.
    """
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            span = range(int(first), int(last or first) + 1)
            if not span or span[0] < 1 or span[-1] > _MOST_DRAFTS:
                raise ValueError(part)  # noqa: TRY301 - one way to refuse
            found.update(span)
    except ValueError as error:
        raise UsageError(
            f"is {text!r}, allowed are numbers from 1 to {_MOST_DRAFTS}",
            place="--k",
            fix="such as 1-8 or 1,2,4",
        ) from error
    return tuple(sorted(found))
