"""The arithmetic of a decoder layer, in two interchangeable forms.

`portable` is written in torch and runs on every device; `native` is compiled once on the machine it runs on.
Both compute the same functions in float32; the native form also computes each row independently of the rows
beside it, so that verification and batching change no bit of a logit.
"""

from draftproof.reference.kernels.protocol import Attention, Kernels, Linear
from draftproof.reference.kernels.select import KernelChoice, select_kernels

__all__ = ["Attention", "KernelChoice", "Kernels", "Linear", "select_kernels"]
