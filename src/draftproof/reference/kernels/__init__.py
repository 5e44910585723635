"""The arithmetic of a decoder layer, in two interchangeable forms.

`portable` is written in torch and runs on every device; `native` is compiled once on the machine it runs on.
Both compute the same functions in float32; the native form also computes each row independently of the rows
beside it, so that verification and batching change no bit of a logit.
"""

from draftproof.reference.kernels.native import select_kernels
from draftproof.reference.kernels.protocol import Attention, Kernels, Linear

__all__ = ["Attention", "Kernels", "Linear", "select_kernels"]
