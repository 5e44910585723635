"""The error tree. Every error a user can cause carries one sentence, the place, and the fix.

DraftproofError
├── UsageError            2   the call, the plan or an input file is wrong
│   ├── PlanError             a key or value of the plan
│   ├── WorkloadError         a line of the workload
│   └── IncompatibleError     draft and target, or two arms, cannot be put together
├── EngineError           1   a service did not start, answer or stop as it must
├── StoreError            1   a journal or run directory cannot be written or read
├── InvalidRunError      40   the run exists but nothing may be concluded from it
└── NotVerifiedError     50   a handover package is not what it claims to be
"""


class DraftproofError(Exception):
    """One sentence for a person, with an exit code for a script.

    `place`: file, key or line at fault, or None where there is no such place. `fix`: what to do about it, or
    None.
    """

    exit_code = 1

    def __init__(self, message: str, *, place: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message, self.place, self.fix = message, place, fix

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        sentence = f"{where}{self.message.rstrip('.')}."
        return f"{sentence} Fix: {self.fix.rstrip('.')}." if self.fix else sentence


class UsageError(DraftproofError):
    """The call, the plan or an input file is wrong."""

    exit_code = 2


class PlanError(UsageError):
    """A key or value of the plan is wrong."""


class WorkloadError(UsageError):
    """A line of the workload is wrong."""


class IncompatibleError(UsageError):
    """Two things that must agree do not: tokenizers, or the manifests of two arms."""


class EngineError(DraftproofError):
    """A service did not start, answer or stop as it must."""


class StoreError(DraftproofError):
    """A journal or run directory cannot be written or read."""


class InvalidRunError(DraftproofError):
    """The run exists but nothing may be concluded from it."""

    exit_code = 40


class NotVerifiedError(DraftproofError):
    """A handover package is damaged, was changed, or is not signed by the expected key."""

    exit_code = 50
