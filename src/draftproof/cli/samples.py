"""`draftproof samples`: how many prompts a plan takes, before it is run or after an earlier run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.console import JsonOption, print_either
from draftproof.core.errors import UsageError

if TYPE_CHECKING:
    from draftproof.judge.decide.spreads import Earlier

STATISTICS = ("mean", "p50", "p95", "p99")
_SHOWN_CHARACTERS = 24

_Plan = Annotated[Path, typer.Argument(help="A plan file (TOML), or builtin:demo.", show_default=False)]
_Run = Annotated[
    Path | None,
    typer.Option(
        "--run",
        help="Earlier run whose spreads and counts are taken instead of assumed ones.",
        show_default=False,
    ),
]
_Gain = Annotated[
    float | None,
    typer.Option("--gain", help="True gain to be seen: 0.10 is 10 % less time.", show_default="0.10"),
]
_Quantile = Annotated[
    str | None,
    typer.Option(
        "--quantile",
        help="Statistic in which it is to be seen: mean, p50, p95 or p99.",
        show_default="the plan's",
    ),
]
_Power = Annotated[float, typer.Option("--power", help="Chance of seeing it in one cell, if it is there.")]


def samples(
    plan_file: _Plan,
    *,
    run: _Run = None,
    gain: _Gain = None,
    quantile: _Quantile = None,
    power: _Power = 0.8,
    as_json: JsonOption = False,
) -> None:
    """Say how many prompts and requests a plan takes to see a gain, and what its workload has.

    Also for the tail, for failed requests and for checks, each against the plan's margin. With --run: how
    many more than that run measured. Starts no service.
    """
    from draftproof.judge.decide.samples import default_question, plan_samples  # noqa: PLC0415
    from draftproof.judge.results.samples import SampleQuestion  # noqa: PLC0415
    from draftproof.measure.run.check import choose_items  # noqa: PLC0415
    from draftproof.plan.loading import load_plan  # noqa: PLC0415
    from draftproof.tell.report.text import render_samples  # noqa: PLC0415

    plan, _ = load_plan(plan_file)
    statistic = quantile or plan.comparison.statistic
    if statistic not in STATISTICS:
        raise UsageError(
            f"is {_shorten(statistic)!r}, allowed are {', '.join(STATISTICS)}",
            place="--quantile",
            fix="such as p95",
        )
    _, items = choose_items(plan)
    gain = default_question(plan).gain if gain is None else gain
    question = SampleQuestion(gain=gain, statistic=statistic, power=power)  # type: ignore[arg-type]
    found = plan_samples(plan, items, question, _read_run(run))
    print_either(found, lambda: render_samples(found).rstrip("\n"), as_json=as_json)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _read_run(path: Path | None) -> "Earlier | None":
    if path is None:
        return None
    from draftproof.judge.decide.spreads import read_earlier  # noqa: PLC0415
    from draftproof.judge.observe.run_data import prepare_run  # noqa: PLC0415
    from draftproof.store import RunDirectory  # noqa: PLC0415

    return read_earlier(prepare_run(RunDirectory.open(path).load()))
