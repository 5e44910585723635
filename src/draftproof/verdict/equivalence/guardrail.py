"""What a contradicted guarantee does to a verdict: no gain is credited where it happened, and a warning.

Pure. A contract that calls outputs guaranteed describes another method than the one that ran, if the outputs
differ by more than rounding and equal arms explain: what was sped up is then not the service that was to be.
"""

from collections.abc import Iterable, Iterator, Sequence

from draftproof.verdict.effects import CellKey
from draftproof.verdict.equivalence.results import ALL_LOADS, OutputEquivalence
from draftproof.verdict.guardrails import Finding
from draftproof.verdict.results import Reason

CODE = "equivalence_contradicted"


def judge_equivalence(cell: CellKey, rows: Iterable[OutputEquivalence]) -> tuple[Finding, ...]:
    """Return the finding that withholds a gain in a cell whose candidate contradicts its contract, if so.

    A contradiction that shows in the pooled outputs only concerns every load.
    """
    found = _list_contradicted(rows)
    single = [row for row in found if row.load != ALL_LOADS]
    here = [row for row in single if row.load == cell[1]] or (found if not single else [])
    return tuple(
        Finding(
            standing="open",
            reason=Reason(
                code=CODE,
                text=f"the contract calls the outputs guaranteed by method, but the candidate {row.phrase}; "
                "a gain is not credited.",
                evidence=f"equivalence: candidate / baseline, {name_place(row.load)}",
            ),
        )
        for row in here
    )


def warn_about_equivalence(rows: Iterable[OutputEquivalence]) -> Iterator[str]:
    """Yield one warning for each arm whose outputs contradict its contract."""
    found: dict[str, list[OutputEquivalence]] = {}
    for row in rows:
        if row.is_contradicted:
            found.setdefault(row.arm, []).append(row)
    for arm, own in found.items():
        places = [name_place(row.load) for row in own if row.load != ALL_LOADS] or [ALL_LOADS]
        yield (
            f"The contract calls the outputs of the {arm} guaranteed by method, but they contradict it "
            f"at {', '.join(places)}: {own[-1].phrase}. {' '.join(own[0].why)}"
        )


def name_place(load: str) -> str:
    """Return "load busy", or "all loads"."""
    return load if load == ALL_LOADS else f"load {load}"


def _list_contradicted(rows: Iterable[OutputEquivalence]) -> Sequence[OutputEquivalence]:
    return [row for row in rows if row.arm == "candidate" and row.is_contradicted]
