"""Which kernels an engine uses."""

import logging
from typing import Literal

import torch

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.kernels.native import build_native
from draftproof.reference.kernels.portable import PortableKernels
from draftproof.reference.kernels.protocol import Kernels
from draftproof.reference.weights.fetch import cache_dir

KernelChoice = Literal["auto", "native", "portable"]
_logger = logging.getLogger(__name__)


def select_kernels(choice: KernelChoice, *, dtype: torch.dtype, device: torch.device) -> Kernels:
    """Return the chosen kernels; `auto` takes the native ones where they run and can be compiled.

    Raises UsageError: native kernels are asked for where they do not run; EngineError: they are asked for and
    do not compile.
    """
    fits = dtype == torch.float32 and device.type == "cpu"
    if choice == "portable" or (choice == "auto" and not fits):
        return PortableKernels()
    if not fits:
        raise UsageError(
            f"native kernels compute float32 on a CPU, not {dtype} on {device.type}",
            place="kernels",
            fix="use kernels auto or portable",
        )
    try:
        return build_native(cache_dir())
    except EngineError as fault:
        if choice == "native":
            raise
        _logger.warning("portable kernels are used, which are slower: %s", fault)
        return PortableKernels()
