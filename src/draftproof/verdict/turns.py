"""The turns of every arm at every load: how many ended, and whether the client kept up. Pure."""

from draftproof.verdict.decision_results import TurnSummary
from draftproof.verdict.run_data import PreparedRun


def summarise_turns(prepared: PreparedRun) -> tuple[TurnSummary, ...]:
    """Return one row per load and arm, those without a single turn included."""
    return tuple(_summarise(prepared, arm, load) for load in prepared.loads for arm in prepared.arms)


def _summarise(prepared: PreparedRun, arm: str, load: str) -> TurnSummary:
    turns = [turn for turn in prepared.turns.values() if (turn.arm, turn.load) == (arm, load)]
    lags = [turn.lag_max_ns for turn in turns if turn.lag_max_ns is not None]
    return TurnSummary(
        arm=arm,
        load=load,
        turns=len(turns),
        completed=sum(turn.completed for turn in turns),
        lagged=sum(turn.lagged for turn in turns),
        lag_unknown=len(turns) - len(lags),
        lag_max_ns=max(lags, default=None),
    )
