"""The options for a run that cannot end well, and how its notices look."""

import pytest

from draftproof.cli.app import give_minutes
from draftproof.cli.live import describe_notice
from draftproof.cli.run import read_patience
from draftproof.core.errors import UsageError
from draftproof.core.records import Notice
from draftproof.measure.run.progress import Patience


@pytest.mark.parametrize(
    ("args", "given"),
    [
        ("demo --wait-for-quiet", "demo --wait-for-quiet=60"),
        ("demo --wait-for-quiet --quick", "demo --wait-for-quiet=60 --quick"),
        ("run --wait-for-quiet plan.toml", "run --wait-for-quiet=60 plan.toml"),
        ("run --wait-for-quiet 90 plan.toml", "run --wait-for-quiet 90 plan.toml"),
        ("run --wait-for-quiet 0.5 plan.toml", "run --wait-for-quiet 0.5 plan.toml"),
        ("run --wait-for-quiet=5 plan.toml", "run --wait-for-quiet=5 plan.toml"),
        ("run plan.toml --out run", "run plan.toml --out run"),
    ],
)
def test_a_wait_without_minutes_takes_an_hour(args, given):
    """What follows it and is no number is another argument."""
    assert give_minutes(args.split()) == given.split()


def test_patience_is_read_in_minutes():
    """No option: a run that cannot end well ends."""
    assert read_patience(None, keep_going=False) == Patience(wait_s=None, keep_going=False)
    assert read_patience(1.5, keep_going=False) == Patience(wait_s=90.0)
    assert read_patience(None, keep_going=True) == Patience(keep_going=True)


def test_waiting_and_going_on_exclude_each_other():
    """Both at once say nothing."""
    with pytest.raises(UsageError, match="exclude each other"):
        read_patience(5.0, keep_going=True)


def test_a_notice_says_what_is_wrong_and_what_helps():
    """One that ends the run says so."""
    note = Notice(code="host_busy", severity="note", text="Others use 1.0 of 2 cores.", remedy="stop them")
    over = Notice(code="host_busy", severity="cannot_end_well", text=note.text, remedy=note.remedy)
    assert describe_notice(note) == "Others use 1.0 of 2 cores. What helps: stop them."
    assert describe_notice(over) == (
        "Others use 1.0 of 2 cores. The run cannot end well and ends here. What helps: stop them."
    )
