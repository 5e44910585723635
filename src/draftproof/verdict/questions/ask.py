"""The twelve questions of a review, each answered from this run or left open with what would answer it.

Pure. An answer holds only what a row of the results, the manifest or the plan says; what nobody measured or
stated is not guessed. The order and the wording of the questions are fixed, so that reviews can be compared.
"""

from collections.abc import Callable

import msgspec

from draftproof.manifests import Manifest
from draftproof.plan.schema import Plan
from draftproof.verdict.decision_results import Question
from draftproof.verdict.questions import answers_measured, answers_stated
from draftproof.verdict.questions.answers import Answer, Source
from draftproof.verdict.results import Results

QUESTIONS: tuple[tuple[str, str, Callable[[Source], Answer]], ...] = (
    ("delay", "Which delay is speculation to remove?", answers_measured.answer_delay),
    (
        "bound",
        "Which bound applies, and what is the most that speculation can give?",
        answers_measured.answer_bound,
    ),
    ("method", "Which method and which runtime?", answers_stated.answer_method),
    ("compatible", "Are target and drafter compatible and licensed?", answers_stated.answer_compatible),
    ("resources", "What does it cost in memory and power?", answers_measured.answer_resources),
    (
        "acceptance",
        "What is accepted, by language, task and length?",
        answers_measured.answer_acceptance,
    ),
    ("high_batch", "How does it behave at a high batch?", answers_measured.answer_high_batch),
    ("media", "Does speech or picture arrive sooner?", answers_measured.answer_media),
    (
        "equivalence",
        "Is the output equivalent by guarantee, or is that assumed?",
        answers_stated.answer_equivalence,
    ),
    ("disable", "Can it be switched off?", answers_stated.answer_disable),
    ("lifecycle", "How is it patched and retired?", answers_stated.answer_lifecycle),
    ("thresholds", "Which threshold blocks it or rolls it back?", answers_stated.answer_thresholds),
)


def answer_questions(results: Results, plan: Plan, manifest: Manifest) -> tuple[Question, ...]:
    """Return the twelve questions in their order with what this run says to each."""
    source = Source(results=results, plan=plan, manifest=manifest)
    return tuple(
        Question(number=number, key=key, question=text, **msgspec.structs.asdict(answer(source)))
        for number, (key, text, answer) in enumerate(QUESTIONS, start=1)
    )
