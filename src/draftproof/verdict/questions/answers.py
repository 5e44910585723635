"""What the answers to the review questions are made from and made of. Pure data and look-ups."""

from collections.abc import Iterable

import msgspec

from draftproof.manifests import ArmManifest, Contract, Manifest
from draftproof.plan.schema import Plan
from draftproof.verdict.decision_results import QuestionStanding
from draftproof.verdict.figure import Figure
from draftproof.verdict.load_size import LoadSize
from draftproof.verdict.results import ArmCell, Effect, Results
from draftproof.verdict.run_data import ALL_SEGMENTS

UNDISCLOSED = "undisclosed"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: how far it goes, in one or two sentences, the rows it rests on, and what is missing."""

    standing: QuestionStanding
    answer: str
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an answer may rest on."""

    results: Results
    plan: Plan
    manifest: Manifest

    @property
    def contract(self) -> Contract | None:
        """The candidate's contract."""
        return next((one for one in self.manifest.contracts if one.arm == "candidate"), None)

    @property
    def loads(self) -> tuple[tuple[str, LoadSize], ...]:
        """The loads and their sizes, closed loops by requests in flight, then open ones by rate."""
        return tuple(sorted(self.results.sizes.items(), key=lambda level: level[1].order))

    def drafts(self, arm: str) -> bool | None:
        """Return whether an arm's contract says that it drafts, None where it does not tell."""
        kind = next((one.drafter_kind for one in self.manifest.contracts if one.arm == arm), UNDISCLOSED)
        return None if kind == UNDISCLOSED else kind != "none"

    def arm(self, name: str) -> ArmManifest | None:
        """Return what the run wrote down of an arm."""
        return next((one for one in self.manifest.arms if one.arm == name), None)

    def cell_of(self, arm: str, load: str) -> ArmCell | None:
        """Return an arm's figures at a load over all segments."""
        wanted = (arm, ALL_SEGMENTS, load)
        return next(
            (one for one in self.results.arm_cells if (one.arm, one.segment, one.load) == wanted), None
        )

    def is_invalid(self, load: str) -> bool:
        """Return whether every cell of a load is invalid, so that nothing there compares arms."""
        found = [cell.status for cell in self.results.cells if cell.load == load]
        return bool(found) and set(found) == {"invalid"}

    def effect_at(self, load: str, arm: str = "candidate") -> Effect | None:
        """Return the deciding effect of an arm at a load over all segments."""
        wanted = (self.results.metric, arm, "baseline", ALL_SEGMENTS, load)
        return next(
            (
                one
                for one in self.results.effects
                if (one.metric, one.arm, one.versus, one.segment, one.load) == wanted
            ),
            None,
        )


def grade(known: Iterable[bool]) -> QuestionStanding:
    """Return "answered" if all parts are known, "open" if none is, else "partly"."""
    parts = list(known)
    if all(parts):
        return "answered"
    return "partly" if any(parts) else "open"


def write_ratio(figure: Figure) -> str:
    """Return "0.62 (0.55 to 0.70)"."""
    if figure.value is None:
        return "unknown"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"


def write_share(share: float | None) -> str:
    """Return "62 %", or "an unknown share"."""
    return "an unknown share" if share is None else f"{100 * share:.0f} %"
