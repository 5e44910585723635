"""The twelve review questions: for the page, and as plain lines for a terminal. Pure view of the results."""

import msgspec

from draftproof.report.lines import bullets, wrap
from draftproof.verdict.decision_results import Question
from draftproof.verdict.results import Results

STANDINGS = {"answered": ("Answered", "✓"), "partly": ("Partly", "◐"), "open": ("Open", "○")}
OLD = "These results are older than the questions; `draftproof report` computes them anew."


class QuestionView(msgspec.Struct, frozen=True, kw_only=True):
    """One question as the page shows it, with the references that its answer rests on."""

    number: int
    question: str
    standing: str
    label: str
    glyph: str
    answer: str
    missing: tuple[str, ...]
    evidence: tuple[str, ...]


class QuestionSection(msgspec.Struct, frozen=True, kw_only=True):
    """All questions and how many are answered."""

    sentence: str
    questions: tuple[QuestionView, ...]


def build_questions(results: Results) -> QuestionSection:
    """Return the section; a run judged before there were questions has none and says so."""
    return QuestionSection(
        sentence=count_questions(results), questions=tuple(_view(one) for one in results.questions)
    )


def count_questions(results: Results) -> str:
    """Return "Of twelve questions 7 are answered, 3 partly, 2 are open."."""
    if not results.questions:
        return OLD
    counts = {name: sum(one.standing == name for one in results.questions) for name in STANDINGS}
    return (
        f"Of {len(results.questions)} questions that a review asks, this run answers {counts['answered']}, "
        f"answers {counts['partly']} in part and leaves {counts['open']} open."
    )


def render_questions(results: Results) -> str:
    """Render the questions for a terminal; the same results give the same text."""
    lines = wrap(count_questions(results))
    for one in results.questions:
        label, _ = STANDINGS[one.standing]
        lines += ["", f"{one.number}. {one.question}  [{label.lower()}]", *wrap(one.answer)]
        lines += bullets(f"would answer it: {text}" for text in one.missing)
        lines += bullets([f"rests on: {'; '.join(one.evidence)}"] if one.evidence else [])
    return "\n".join(lines)


def _view(question: Question) -> QuestionView:
    label, glyph = STANDINGS[question.standing]
    return QuestionView(
        number=question.number,
        question=question.question,
        standing=question.standing,
        label=label,
        glyph=glyph,
        answer=question.answer,
        missing=question.missing,
        evidence=question.evidence,
    )
