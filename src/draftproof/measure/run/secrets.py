"""Keeps secrets out of journal and messages: what a service quotes of its request is masked before that."""

import contextlib
from collections.abc import Iterator

from draftproof.core.errors import DraftproofError
from draftproof.measure.load.driver import MaskingSink
from draftproof.plan.environment import mask_values

__all__ = ["MaskingSink", "masked_errors"]


@contextlib.contextmanager
def masked_errors(secrets: tuple[str, ...]) -> Iterator[None]:
    """Mask secrets in the errors that the body raises: a service may repeat a key in all that it says."""
    try:
        yield
    except DraftproofError as error:
        error.message = mask_values(error.message, secrets)
        error.place = error.place and mask_values(error.place, secrets)
        error.fix = error.fix and mask_values(error.fix, secrets)
        error.args = (error.message,)
        raise
