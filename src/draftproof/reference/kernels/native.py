"""The kernels compiled on the machine they run on: C++ without dependencies, called through ctypes.

The shared library lies in the user's cache under a name made of everything it depends on: source, compiler,
flags, processor. Nothing is compiled twice, and a cache carried to another machine is not used there.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from draftproof.errors import EngineError
from draftproof.reference.kernels.protocol import Attention, Linear
from draftproof.reference.ragged import RaggedBatch

_SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-fno-math-errno")
_COMPILE_S = 120
_LANES, _BLOCK = 8, 16


class _Heads(ctypes.Structure):
    _fields_ = (
        ("queries", ctypes.c_long),
        ("groups", ctypes.c_long),
        ("size", ctypes.c_long),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
    )


class NativeKernels:
    """The compiled kernels; float32 rows on a CPU, weights in bfloat16 where that loses nothing.

    Args:
        library: path of the shared library.
    """

    name = "native"
    row_independent = True

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        pointer, count, number = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        signatures: dict[str, tuple[type, ...]] = {
            "pack_bf16": (pointer, pointer, count, count),
            "pack_f32": (pointer, pointer, count, count),
            "linear_bf16": (pointer, pointer, pointer, pointer, count, count, count, number, number),
            "linear_f32": (pointer, pointer, pointer, pointer, count, count, count, number, number),
            "rms_norm": (pointer, pointer, pointer, count, count, ctypes.c_float),
            "silu_mul": (pointer, pointer, count, count, number),
            "attend": (pointer, pointer, pointer, pointer, count, count, *[pointer] * 4, number),
        }
        for name, arguments in signatures.items():
            function = getattr(self._library, f"draftproof_{name}")
            function.argtypes, function.restype = arguments, None

    def supports(self, head_size: int, *widths: int) -> bool:
        """Return whether all sizes are whole vectors, half a head included."""
        return head_size % (2 * _LANES) == 0 and all(width % _LANES == 0 for width in widths)

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Copy weights [outputs, inputs] into blocks of sixteen outputs, in 16 bits if that loses nothing."""
        outputs, inputs = weight.shape
        blocks = -(-outputs // _BLOCK)
        halves = weight.detach().to(torch.bfloat16).contiguous()
        if torch.equal(halves.to(weight.dtype), weight):
            packed = torch.zeros(blocks, inputs, _LANES, dtype=torch.int32)
            self._library.draftproof_pack_bf16(halves.data_ptr(), packed.data_ptr(), inputs, outputs)
        else:
            whole = weight.detach().float().contiguous()
            packed = torch.zeros(blocks, inputs, _BLOCK)
            self._library.draftproof_pack_f32(whole.data_ptr(), packed.data_ptr(), inputs, outputs)
        return Linear(packed, None if bias is None else bias.detach().float().contiguous(), inputs, outputs)

    def linear(self, rows: torch.Tensor, layer: Linear, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product."""
        rows = rows.contiguous()
        count = rows.numel() // layer.inputs
        out = rows.new_empty(count, layer.outputs) if add_to is None else add_to
        product = (
            self._library.draftproof_linear_bf16
            if layer.weights.dtype == torch.int32
            else self._library.draftproof_linear_f32
        )
        product(
            rows.data_ptr(),
            layer.weights.data_ptr(),
            None if layer.bias is None else layer.bias.data_ptr(),
            out.data_ptr(),
            count,
            layer.inputs,
            layer.outputs,
            add_to is not None,
            torch.get_num_threads(),
        )
        return out

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return the normed rows."""
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        width = rows.shape[-1]
        self._library.draftproof_rms_norm(
            rows.data_ptr(), weight.data_ptr(), out.data_ptr(), rows.numel() // width, width, eps
        )
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return the gated product."""
        count, both = gate_up.shape
        out = gate_up.new_empty(count, both // 2)
        self._library.draftproof_silu_mul(
            gate_up.data_ptr(), out.data_ptr(), count, both // 2, torch.get_num_threads()
        )
        return out

    def attend(
        self, qkv: torch.Tensor, angles: torch.Tensor, batch: RaggedBatch, layer: int, shape: Attention
    ) -> torch.Tensor:
        """Rotate, write and attend in one call."""
        out = qkv.new_empty(len(qkv), shape.query_heads * shape.head_size)
        heads = _Heads(
            shape.query_heads,
            shape.kv_heads,
            shape.head_size,
            shape.scale,
            shape.eps,
            None if shape.query_norm is None else shape.query_norm.data_ptr(),
            None if shape.key_norm is None else shape.key_norm.data_ptr(),
        )
        table = batch.table
        self._library.draftproof_attend(
            qkv.data_ptr(),
            angles.data_ptr(),
            out.data_ptr(),
            ctypes.addressof(heads),
            len(table.lengths),
            layer,
            table.caches,
            table.lengths,
            table.counts,
            table.capacities,
            torch.get_num_threads(),
        )
        return out


def build_native(cache_folder: Path) -> NativeKernels:
    """Return the compiled kernels, compiling them if this machine has not yet.

    Raises:
        EngineError: there is no C++ compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise EngineError("there is no C++ compiler", fix="install g++, or use --kernels portable")
    library = cache_folder / f"kernels-{_fingerprint(compiler)}.so"
    if not library.exists():
        _compile(compiler, library)
    return NativeKernels(library)


def _compile(compiler: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        fresh = Path(folder) / library.name
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(fresh)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_S)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as fault:
            detail = (getattr(fault, "stderr", None) or str(fault)).strip().splitlines()
            raise EngineError(
                f"the native kernels do not compile: {detail[0] if detail else fault}",
                place=compiler,
                fix="name another compiler in CXX, or use --kernels portable",
            ) from fault
        fresh.replace(library)  # whole or not at all, also when two processes compile at once


def _fingerprint(compiler: str) -> str:
    asked = subprocess.run([compiler, "--version"], check=False, capture_output=True, text=True)  # noqa: S603
    parts = (_SOURCE.read_text(), asked.stdout, " ".join(_FLAGS), platform.machine(), _processor_flags())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
