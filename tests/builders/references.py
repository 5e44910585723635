"""Every reference that results hold, for tests that none of them leads nowhere."""

from collections.abc import Iterator

from draftproof.judge.results.decide import Reference
from draftproof.judge.results.run import Results


def list_references(results: Results) -> Iterator[Reference]:
    """Yield the references of reasons, guardrails and questions."""
    for question in results.questions:
        yield from question.evidence
    for reason in results.verdict.reasons:
        yield reason.evidence
    for cell in results.cells:
        yield from (reason.evidence for reason in cell.reasons)
        yield from (guardrail.evidence for guardrail in cell.guardrails)
