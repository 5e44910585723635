"""What a run said of its own chances while it was measured, and whether it ended there. Pure."""

from collections.abc import Collection, Iterator

from draftproof.core.records import Notice
from draftproof.judge.results.run import Reason

ENDED_EARLY = "ended_early"
FORECAST = "; at this pace about"
_RESUMED = ("waited", "went_on")


def find_ending(notices: Collection[Notice]) -> Notice | None:
    """Return why a run ended before its end, None where it did not or went on later.

    Notices stand in the order in which they were written: a clock may begin anew before a run goes on.
    """
    ending = None
    for one in notices:
        if one.severity == "cannot_end_well":
            ending = one
        elif one.code in _RESUMED:
            ending = None
    return ending


def note_going_on(at_ns: int) -> Notice:
    """Return the notice that a run which had ended before its end was continued."""
    return Notice(
        code="went_on",
        severity="note",
        text="The run was continued after it had ended before its end.",
        remedy="none is needed",
        at_ns=at_ns,
    )


def explain_ending(notices: Collection[Notice]) -> tuple[Reason, ...]:
    """Return the reason of a run that ended before its end, none for any other."""
    ending = find_ending(notices)
    if ending is None:
        return ()
    text = f"The run ended before its end, because it could not end well: {_lower(_read_text(ending))}"
    text += f" What helps: {ending.remedy}."
    return (Reason(code=ENDED_EARLY, text=text, evidence="arm_cells"),)


def warn_about_notices(notices: Collection[Notice]) -> Iterator[str]:
    """Yield what was said while the run was measured, each once."""
    for text in dict.fromkeys(map(_read_text, notices)):
        yield f"While it was measured: {_lower(text)}"


def _read_text(notice: Notice) -> str:
    """Return what a notice says, without the forecast of its time, which is over."""
    said, forecast, _ = notice.text.partition(FORECAST)
    return f"{said}." if forecast else said


def _lower(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"
