"""Runs one period in this process, as the measuring loop does, with what a test wants otherwise."""

from draftproof.measure.load.loops import run
from draftproof.measure.load.request_runner import RequestRunner
from draftproof.measure.load.schedule import warmup_period


async def run_period(period, endpoint, items, *, stop=None, **options):
    """Run a period and return its record."""
    return await run(RequestRunner(period, endpoint, items, **options), stop)


async def run_warmup(period, endpoint, items, *, count, **options):
    """Send `count` requests of phase `warmup` over the period's items."""
    return await run_period(warmup_period(period, count), endpoint, items, phase="warmup", **options)
