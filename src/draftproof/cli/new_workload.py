"""What a new plan says of its prompts, loads and evidence: the starter's, a log's or a recording's."""

from typing import Any

import msgspec

from draftproof.judge.decide.forecast import final_level
from draftproof.judge.decide.guardrails import pairs_needed_for_margin
from draftproof.judge.stats.quantile_ratio import tail_floor
from draftproof.plan.schema import Comparison, Sequential, Thresholds
from draftproof.workload.blocks import ENOUGH_BLOCKS
from draftproof.workload.moments import Units

_STARTER_PROMPTS = 48
RECORDED_S, _LARGE_BLOCK = 600.0, 128  # of a recording: what a new plan takes, and its largest block
# More prompts than this make a run of hours; a new plan then takes a part, and says so.
MOST_PROMPTS = 600
_SMALL_MARGIN = 0.10
_STARTER_PART = """{ language = ["en"], sampling = ["regulated"], \
task = ["rewriting", "grounded", "explanation", "chat"] }"""
_LOAD_WHY = """\
Requests in flight: the ordinary load and the intended peak; a block is a measurement period of each arm, six
are the fewest. A load ends where an analysis settles it. Rates, recorded arrivals: docs/load.md."""
_LOG_WHY = """\
A log is a fair sample of the traffic that it is from. If yours is none, say "synthetic": a verdict is then a
pilot hypothesis."""
_STARTER_WHY = """\
Starter prompts are no traffic: a verdict on them is a pilot. A fair sample of yours is "representative"."""
_TRACE_WHY = """\
A trace that keeps no prompts is asked with invented words, so its verdict is a pilot hypothesis. Where it has
the prompts and is a fair sample of your traffic, say "representative"."""


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of a log, as a plan reads them: file, segments, their sizes, and where they come from."""

    path: str
    segment_by: tuple[str, ...]
    sizes: tuple[int, ...]
    source: str

    @property
    def each(self) -> int | None:
        """How many of each segment are asked, None for all."""
        return None if sum(self.sizes) <= MOST_PROMPTS else max(1, MOST_PROMPTS // len(self.sizes))

    def count_asked(self) -> int:
        """How many are asked in all: a small segment has fewer than `each`."""
        return sum(size if self.each is None else min(size, self.each) for size in self.sizes)


def describe_workload(prompts: Prompts | None, *, peak: int, limit: int) -> dict[str, Any]:
    """Return what a new plan says of the prompts of a log, or of the starter where there is none.

    `peak`: requests in flight of the intended peak. `limit`: tokens of an answer to the starter's prompts.
    """
    count = prompts.count_asked() if prompts else _STARTER_PROMPTS
    size = max(1, count // ENOUGH_BLOCKS)
    levels = [
        {"name": "single", "concurrency": 1, "block_size": size},
        {"name": "busy", "concurrency": peak, "block_size": size},
    ]
    said = _describe_prompts(prompts, count) if prompts else _describe_starter(limit)
    return said | {"levels": levels, "load_why": _LOAD_WHY, **_choose_margin(count)}


def describe_trace(path: str, requests: int, units: Units) -> dict[str, Any]:
    """Return what a new plan says of a recording: a block is a window of it, and large ones keep its bursts.

    `requests`: how many the part of it that is taken has. `units`: what the recording does not say.
    """
    size = max(1, min(_LARGE_BLOCK, requests // ENOUGH_BLOCKS))
    keys: dict[str, Any] = {"window": f"{{ start_s = 0.0, duration_s = {RECORDED_S} }}"}
    if units.timestamp:
        keys["timestamp_unit"] = f'"{units.timestamp}"'
    if units.block_tokens:
        keys["block_tokens"] = units.block_tokens
    return {
        "evidence": "synthetic",
        "evidence_why": _TRACE_WHY,
        "workload": path,
        "workload_why": "Recorded requests: each is due when the recording says, in every arm alike "
        "(docs/load.md). `max_tokens` would cap the recorded lengths of answers, and make the load lighter.",
        "segment_by": ("prompt_length",),
        "workload_keys": keys,
        "levels": [{"name": "recorded", "block_size": size, "replay": {"speed": 1.0}}],
        "load_why": "A block is a window of the recording, which each arm in turn answers; large blocks keep "
        "its bursts.",
        **_choose_margin(requests),
    }


def _describe_prompts(prompts: Prompts, count: int) -> dict[str, Any]:
    least = max(_tail_of_default(), _pairs_of_default())
    each = prompts.each
    cut = (
        f" Of each segment {each} are asked, chosen by the seed: all would take "
        f"{sum(prompts.sizes) / count:.1f} times as long."
    )
    pilot = f"{count} prompts are a pilot: the tail ({Thresholds().tail_quantile}) and failures take {least}."
    return {
        "evidence": "representative" if count >= least else "pilot",
        "evidence_why": _LOG_WHY if count >= least else pilot,
        "workload": prompts.path,
        "workload_why": prompts.source + (cut if each else ""),
        "segment_by": prompts.segment_by,
        "workload_keys": {"items_per_segment": each} if each else {},
    }


def _describe_starter(limit: int) -> dict[str, Any]:
    return {
        "evidence": "synthetic",
        "evidence_why": _STARTER_WHY,
        "workload": "builtin:starter",
        "workload_why": "Your own prompts decide: `draftproof init --from-log FILE`, or a JSONL file "
        "(docs/workloads.md).",
        "segment_by": ("task",),
        "workload_keys": {
            "items_per_segment": 12,
            "max_tokens": limit,
            "where": _STARTER_PART,
        },
    }


def _choose_margin(prompts: int) -> dict[str, Any]:
    """Return whether the default margin of failures is beyond what so many prompts can show."""
    needed, least = _pairs_of_default(), pairs_needed_for_margin(_SMALL_MARGIN, _level())
    shown = f"what {prompts} prompts can show" if prompts >= least else f"takes {least} prompts"
    return {"failure_margin": prompts < needed, "margin_why": f"{shown}; the default 0.02 takes {needed}"}


def _pairs_of_default() -> int:
    return pairs_needed_for_margin(Thresholds().failure_margin, _level())


def _tail_of_default() -> int:
    return tail_floor(int(Thresholds().tail_quantile.removeprefix("p")) / 100, _level())


def _level() -> float:
    return final_level(Comparison().confidence, Sequential())
