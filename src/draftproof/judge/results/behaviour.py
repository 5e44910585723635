"""The part of `results.json` on what an application relies on beside speed: probes, checks, conversations.

Pure data. What was not asked or not judged is absent or None, never a pass.
"""

import msgspec

from draftproof.core.records import ProbeStatus
from draftproof.judge.results.figure import Figure


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe showed of one arm, outside its measured turns (docs/checks.md)."""

    arm: str
    probe: str
    status: ProbeStatus
    detail: str
    http_status: int | None


class CheckKind(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of one kind for one arm at one load; those of a failed request are judged and not passed."""

    arm: str
    load: str
    kind: str
    judged: int
    passed: int
    critical_failed: int
    unjudged: int


class JudgeAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """How often the passes of one judge over the same answers said the same."""

    by: str
    answers: int
    agreed: int


class ConversationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The conversations of one arm at one load; an item without follow-ups is a conversation of one turn.

    `completed`: every turn was answered. `good`: completed, every turn on time and passing its checks, out of
    those for which all of this can be told; `unjudged` are the rest.
    """

    arm: str
    load: str
    conversations: int
    multi_turn: int
    requests: int
    completed: int
    completed_share: Figure
    good: int
    unjudged: int
    good_share: Figure
