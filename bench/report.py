"""What is wanted of each figure, and the table that says what was found."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

TRAINED = ("draft_model", "attached", "self")
Report = Mapping[str, Any]


def check_thresholds(report: Report) -> list[dict[str, Any]]:
    """Return for each wanted value what was found and whether it is met; None where there is no figure."""
    return [_judge(*row) for row in _wanted(report)]


def _wanted(report: Report) -> Iterator[tuple[str, str, float, float | None]]:
    for key, bound in (
        ("ordinary_vs_transformers", 1.25),
        ("ordinary_compiled_vs_transformers", 1.5),
        ("ngram_vs_transformers_lookup", 1.4),
        ("draft_vs_transformers_assisted", 1.5),
        ("streams8_vs_1", 4.0),
    ):
        yield key, ">=", bound, _median(report[key])
    yield "tpot_vs_vllm", "<=", 1.1, _median(report["tpot_vs_vllm"])
    chat = report["open_chat_speedup"]
    trained = [found for name in TRAINED if (found := _median(chat.get(name))) is not None]
    yield "open_chat_speedup, best trained family", ">=", 1.6, max(trained, default=None)
    for name, figures in report["efficiency"].items():
        yield f"efficiency, {name}", ">=", 0.9, figures.get("efficiency")
    for name, share in report["overhead_share"].items():
        yield f"overhead_share, {name}", "<=", 0.05, share
    neighbour = report.get("neighbour_slowdown")
    yield "neighbour_slowdown, one", "<=", 2.5, None if neighbour is None else neighbour["worst"]["one"]
    yield "cache grows with tokens in use", ">=", 1, int(report["memory"]["target"]["cache_grows_with_use"])


def _median(figure: Report | None) -> float | None:
    return None if figure is None else figure.get("median")


def _judge(key: str, sense: str, bound: float, found: float | None) -> dict[str, Any]:
    met = None if found is None else (found >= bound if sense == ">=" else found <= bound)
    return {"figure": key, "wanted": f"{sense} {bound}", "found": found, "met": met}


def print_table(report: Report, tell: Callable[[str], None] = print) -> None:
    """Print the figures, their spread, and what is wanted of them."""
    tell("\nfigure                                     median   quartiles")
    for key, figure in _figures(report):
        tell(f"{key:<42} {_number(_median(figure))}   {_quartiles(figure)}")
    tell("\nfloor      GB/s   ms to read the weights once   ordinary step over it")
    for name in ("matvec", "read"):
        floor = report["floors"][name]
        numbers = f"{floor['gb_per_s']:>6} {floor['floor_ms']:>29} {floor['ordinary_step_over_floor']:>23}"
        tell(f"{name:<8} {numbers}")
    tell("\nwanted                                     found    wanted     ")
    for row in report["thresholds"]:
        verdict = {None: "not measured", True: "met", False: "MISSED"}[row["met"]]
        tell(f"{row['figure']:<42} {_number(row['found'])}   {row['wanted']:<8}  {verdict}")
    for warning in report["warnings"]:
        tell(f"warning: {warning}")


def _figures(report: Report) -> Iterator[tuple[str, Report]]:
    for key in (
        "ordinary_vs_transformers",
        "ordinary_compiled_vs_transformers",
        "ordinary_portable_vs_transformers",
        "tpot_vs_vllm",
        "ngram_vs_transformers_lookup",
        "draft_vs_transformers_assisted",
        "streams8_vs_1",
    ):
        yield key, report[key]
    for segment, by_family in report["speedup_by_segment"].items():
        for name, figure in by_family.items():
            yield f"speed-up, {segment}, {name}", figure


def _number(value: float | None) -> str:
    return "     –" if value is None else f"{value:6.3f}"


def _quartiles(figure: Report) -> str:
    if figure.get("reason"):
        return str(figure["reason"])
    if figure.get("q1") is not None:
        rounds = figure.get("tokens_per_round")
        drafted = "" if rounds is None else f"  draft {figure['draft_tokens']}, {rounds} tokens a round"
        return f"{figure['q1']:.3f} to {figure['q3']:.3f}{drafted}"
    return f"{figure['lowest']:.3f} to {figure['highest']:.3f} (range)" if "lowest" in figure else ""
