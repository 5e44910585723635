"""The kernels compiled on the machine they run on: C++ without dependencies, called through ctypes.

The shared library lies in the user's cache under a name made of everything it depends on (source, compiler,
flags, processor) and of its own digest. Nothing is compiled twice, a cache carried to another machine is not
used there, and a damaged library, whose loading could end the process, is compiled anew.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

import torch

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.kernels import Attention, Kernels, Linear
from draftproof.reference.kernels.portable import PortableKernels
from draftproof.reference.models.ragged import RaggedBatch
from draftproof.reference.weights.fetch import cache_dir

_logger = logging.getLogger(__name__)
_SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = (
    *("-std=gnu++17", "-O3", "-march=native", "-pthread"),
    *("-shared", "-fPIC", "-fno-math-errno", "-ffp-contract=off"),
)
_COMPILE_S, _ASK_S = 120, 10
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

    They compute on threads of their own, as many as torch has when they are loaded.
    """

    name = "native"
    row_independent = True

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self.threads = torch.get_num_threads()
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
        """Copy weights [outputs, inputs] into blocks of sixteen outputs, in 16 bits if that loses nothing.

        Every number of inputs and outputs will do.
        """
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
        if add_to is not None and not add_to.is_contiguous():
            return add_to.add_(self.linear(rows, layer))
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
            self.threads,
        )
        return out

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return the normed rows."""
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        width = rows.shape[-1]
        _check_whole(width, _LANES)
        self._library.draftproof_rms_norm(
            rows.data_ptr(), weight.data_ptr(), out.data_ptr(), rows.numel() // width, width, eps
        )
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return the gated product."""
        gate_up = gate_up.contiguous()
        count, both = gate_up.shape
        _check_whole(both, 2 * _LANES)
        out = gate_up.new_empty(count, both // 2)
        self._library.draftproof_silu_mul(gate_up.data_ptr(), out.data_ptr(), count, both // 2, self.threads)
        return out

    def attend(
        self, qkv: torch.Tensor, angles: torch.Tensor, batch: RaggedBatch, layer: int, shape: Attention
    ) -> torch.Tensor:
        """Rotate, write and attend in one call."""
        _check_whole(shape.head_size, 2 * _LANES)
        qkv, angles = qkv.contiguous(), angles.contiguous()
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
            self.threads,
        )
        return out


def select_kernels(
    choice: Literal["auto", "native", "portable"], *, dtype: torch.dtype, device: torch.device
) -> Kernels:
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


def build_native(cache_folder: Path) -> NativeKernels:
    """Return the compiled kernels, compiling them if this machine has not yet.

    Raises EngineError: there is no C++ compiler, it fails, or the library cannot be kept or loaded.
    """
    try:
        compiler = _find_compiler()
        stem = f"kernels-{_fingerprint(compiler)}"
        return NativeKernels(_find_library(cache_folder, stem) or _compile(compiler, cache_folder, stem))
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as fault:
        raise EngineError(
            f"the native kernels cannot be built or loaded: {fault}",
            place=str(cache_folder),
            fix="name a compiler in CXX and a writable folder in DRAFTPROOF_CACHE, or use --kernels portable",
        ) from fault


def _find_compiler() -> list[str]:
    """Return the command of the compiler; CXX may bring arguments of its own."""
    named = shlex.split(os.environ.get("CXX", ""))
    found = shutil.which("g++") or shutil.which("clang++")
    if not named and found is None:
        raise EngineError("there is no C++ compiler", fix="install g++, or use --kernels portable")
    return named or [str(found)]


def _find_library(folder: Path, stem: str) -> Path | None:
    """Return the library of this name that is whole, if there is one."""
    built = folder.glob(f"{stem}-*.so")
    return next((path for path in built if path.stem == f"{stem}-{_digest(path.read_bytes())}"), None)


def _compile(compiler: list[str], folder: Path, stem: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        fresh = Path(own) / "kernels.so"
        command = [*compiler, *_FLAGS, str(_SOURCE), "-o", str(fresh)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_S)  # noqa: S603
        except subprocess.CalledProcessError as fault:
            raise EngineError(
                f"the native kernels do not compile: {_reason(fault)}",
                place=compiler[0],
                fix="name another compiler in CXX, or use --kernels portable",
            ) from fault
        library = folder / f"{stem}-{_digest(fresh.read_bytes())}.so"
        fresh.replace(library)  # whole or not at all, also when two processes compile at once
    return library


def _reason(fault: subprocess.CalledProcessError) -> str:
    lines = str(fault.stderr or fault).strip().splitlines() or [str(fault)]
    return next((line for line in lines if "error" in line), lines[0])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _fingerprint(compiler: list[str]) -> str:
    command = [*compiler, "--version"]
    asked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_ASK_S)  # noqa: S603
    parts = (_SOURCE.read_text(), asked.stdout, " ".join(_FLAGS), platform.machine(), _processor_flags())
    return _digest("\0".join([*compiler, *parts]).encode())


def _processor_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _check_whole(width: int, unit: int) -> None:
    """Refuse rows that do not end with a whole vector: the kernels would read and write beyond them."""
    if width % unit:
        raise EngineError(
            f"the native kernels take rows in steps of {unit}, not {width}",
            place="kernels",
            fix="use --kernels portable",
        )
