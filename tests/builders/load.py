"""Runs one turn in this process, as the measuring loop does, with what a test wants otherwise."""

from draftproof.measure.load.loops import run
from draftproof.measure.load.request_runner import Performer
from draftproof.measure.load.schedule import warmup_turn


async def run_turn(turn, endpoint, items, *, stop=None, **options):
    """Run a turn and return its record."""
    return await run(Performer(turn, endpoint, items, **options), stop)


async def run_warmup(turn, endpoint, items, *, count, **options):
    """Send `count` requests of phase `warmup` over the turn's items."""
    return await run_turn(warmup_turn(turn, count), endpoint, items, phase="warmup", **options)
