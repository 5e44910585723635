"""Packages of the extra `handover`, imported where they are used: a check of hashes needs none of them."""

import importlib
from types import ModuleType

from draftproof.errors import UsageError


def load_extra(module: str) -> ModuleType:
    """Import a module of the extra.

    Raises:
        UsageError: the extra is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"this needs the package {module.partition('.')[0]}.",
            fix='install it with: pip install "draftproof[handover]"',
        ) from error
