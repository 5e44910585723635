"""Building the native kernels: once per machine, whole or not at all, and never a crash of the engine."""

import logging
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.kernels import native as native_module
from draftproof.reference.kernels.native import build_native, select_kernels
from draftproof.reference.weights.fetch import cache_dir

CPU = torch.device("cpu")


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch) -> Path:
    """Put a compiler in CXX that hands out the library of this machine and logs its calls beside itself."""
    try:
        build_native(cache_dir())
    except EngineError as fault:
        pytest.skip(str(fault))
    stem = f"kernels-{native_module._fingerprint(native_module._find_compiler())}"
    library = native_module._find_library(cache_dir(), stem)
    script = tmp_path / "compiler"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit 0\necho compiled >> {tmp_path}/calls\n'
        f'for last; do :; done\ncp {library} "$last"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return script


def _calls(compiler: Path) -> int:
    log = compiler.with_name("calls")
    return len(log.read_text().splitlines()) if log.exists() else 0


def _works(kernels) -> bool:
    return torch.equal(
        kernels.linear(torch.ones(1, 8), kernels.pack(torch.ones(16, 8))), torch.full((1, 16), 8.0)
    )


def test_a_library_is_compiled_once(fake_compiler, tmp_path) -> None:
    """The second build of the same source takes the library of the first."""
    assert _works(build_native(tmp_path / "cache"))
    assert _works(build_native(tmp_path / "cache"))
    assert _calls(fake_compiler) == 1


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped"])
def test_a_damaged_library_is_compiled_anew(fake_compiler, tmp_path, damage) -> None:
    """A library that is not what was written is never loaded: half of one may end the process."""
    folder = tmp_path / "cache"
    build_native(folder)
    (library,) = folder.glob("*.so")
    whole = library.read_bytes()
    half = len(whole) // 2
    flipped = whole[:half] + bytes([whole[half] ^ 0xFF]) + whole[half + 1 :]
    broken = {"truncated": whole[:half], "empty": b"", "flipped": flipped}
    library.unlink()  # this process has it loaded: the damage must be to another file
    library.write_bytes(broken[damage])
    assert _works(build_native(folder))
    assert _calls(fake_compiler) == 2
    assert library.read_bytes() == whole


def test_many_builds_at_once_all_get_a_whole_library(fake_compiler, tmp_path) -> None:
    """Builds that race leave one whole library and nothing else."""
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda _: build_native(tmp_path / "cache"), range(8)))
    assert all(_works(kernels) for kernels in built)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert _calls(fake_compiler) >= 1


def _failing(tmp_path: Path, monkeypatch) -> None:
    script = tmp_path / "failing"
    script.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'x.cpp:1: error: no vectors here' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


def _lying(tmp_path: Path, monkeypatch) -> None:
    script = tmp_path / "lying"
    script.write_text('#!/bin/sh\nfor last; do :; done\n[ "$1" = --version ] || echo no library > "$last"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


def _missing(_tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)


def _misnamed(_tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")


def _unwritable(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file" / "cache"))


BROKEN = [
    (_failing, "no vectors here"),
    (_lying, "cannot be built or loaded"),
    (_missing, "no C\\+\\+ compiler"),
    (_misnamed, "cannot be built or loaded.*nowhere"),
    (_unwritable, "cannot be built or loaded"),
]


@pytest.mark.parametrize(("break_it", "reason"), BROKEN)
def test_what_cannot_be_built_is_one_error_or_one_warning(
    tmp_path, monkeypatch, caplog, break_it, reason
) -> None:
    """`native` raises one sentence with a fix; `auto` warns once with the same words and takes portable."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    break_it(tmp_path, monkeypatch)
    with pytest.raises(EngineError, match=reason) as caught:
        select_kernels("native", dtype=torch.float32, device=CPU)
    assert caught.value.fix
    assert "\n" not in str(caught.value)
    with caplog.at_level(logging.WARNING):
        assert select_kernels("auto", dtype=torch.float32, device=CPU).name == "portable"
    assert [str(caught.value) in record.getMessage() for record in caplog.records] == [True]


def test_native_kernels_are_refused_where_they_do_not_run() -> None:
    """Another precision or device: `native` is a usage error, `auto` takes portable without a word."""
    with pytest.raises(UsageError, match="float32 on a CPU"):
        select_kernels("native", dtype=torch.bfloat16, device=CPU)
    assert select_kernels("auto", dtype=torch.bfloat16, device=CPU).name == "portable"
    assert select_kernels("portable", dtype=torch.float32, device=CPU).name == "portable"


def test_a_compiler_may_bring_arguments(fake_compiler, tmp_path, monkeypatch) -> None:
    """CXX may hold a launcher and flags, as build systems allow."""
    script = tmp_path / "launcher"
    script.write_text('#!/bin/sh\nexec "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", f"{script} {fake_compiler}")
    assert _works(build_native(tmp_path / "cache"))


DRIVER = """
#include "SOURCE"
#include <cstdio>
#include <memory>
// Every array is a heap block of its exact size, so that one element too far is found.
template <class T> std::unique_ptr<T[]> block(long n, T value) {
  std::unique_ptr<T[]> made(new T[n]);
  for (long i = 0; i < n; i++) made[i] = value + static_cast<T>(i % 13);
  return made;
}
int main() {
  for (int threads = 1; threads <= 3; threads++) {
    for (long outputs : {1, 7, 8, 9, 16, 17, 63, 64, 65, 130})
      for (long inputs : {1, 5, 24})
        for (long count : {0, 1, 2, 5, 6, 7, 13, 40})
          for (int add = 0; add <= 1; add++) {
            const long blocks = (outputs + 15) / 16;
            auto rows = block<float>(count * inputs, 0.5f), bias = block<float>(outputs, 1.0f);
            auto out = block<float>(count * outputs, 0.0f), whole = block<float>(outputs * inputs, -3.0f);
            auto halves = block<uint16_t>(outputs * inputs, 0x3f80);
            std::unique_ptr<uint32_t[]> packed_halves(new uint32_t[blocks * inputs * 8]());
            std::unique_ptr<float[]> packed_whole(new float[blocks * inputs * 16]());
            draftproof_pack_bf16(halves.get(), packed_halves.get(), inputs, outputs);
            draftproof_pack_f32(whole.get(), packed_whole.get(), inputs, outputs);
            const float* offset = add ? bias.get() : nullptr;
            draftproof_linear_bf16(rows.get(), packed_halves.get(), offset, out.get(),
                                   count, inputs, outputs, add, threads);
            draftproof_linear_f32(rows.get(), packed_whole.get(), offset, out.get(),
                                  count, inputs, outputs, add, threads);
          }
    for (long count : {0, 1, 3, 9})
      for (long width : {8, 24, 48}) {
        auto rows = block<float>(count * 2 * width, -200.0f), weight = block<float>(width, 1.0f);
        auto out = block<float>(count * width, 0.0f);
        draftproof_rms_norm(rows.get(), weight.get(), out.get(), count, width, 1e-6f);
        draftproof_silu_mul(rows.get(), out.get(), count, width, threads);
      }
    for (long size : {16, 48, 128})
      for (long groups : {1, 2})
        for (int norms = 0; norms <= 1; norms++) {
          const long queries = 3 * groups, lengths[] = {0, 63, 7, 64}, counts[] = {5, 1, 0, 64};
          const long capacities[] = {64, 64, 64, 128};
          std::unique_ptr<float[]> own[4];
          float* caches[4];
          for (int s = 0; s < 4; s++) {
            own[s] = block<float>(2 * 2 * groups * capacities[s] * size, -6.0f);
            caches[s] = own[s].get();
          }
          const long tokens = 70, width = (queries + 2 * groups) * size;
          auto qkv = block<float>(tokens * width, -6.0f), angles = block<float>(tokens * size, 0.1f);
          auto out = block<float>(tokens * queries * size, 0.0f), norm = block<float>(size, 0.1f);
          const float* weight = norms ? norm.get() : nullptr;
          const Heads heads{queries, groups, size, 0.25f, 1e-6f, weight, weight};
          draftproof_attend(qkv.get(), angles.get(), out.get(), &heads, 4, 1,
                            caches, lengths, counts, capacities, threads);
        }
  }
  std::puts("clean");
}
"""
BUILDS = {
    "this processor": ["-march=native"],
    "baseline": [],  # vectors of 32 bytes made of smaller ones, no fused multiply-add
}


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
@pytest.mark.parametrize("build", BUILDS)
def test_no_kernel_leaves_its_arrays_or_the_language(tmp_path, build, sanitizers) -> None:
    """Sanitizers of addresses, behaviour and threads find nothing over odd sizes, no rows and full caches."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    source, program = tmp_path / "driver.cpp", tmp_path / "driver"
    source.write_text(DRIVER.replace("SOURCE", str(native_module._SOURCE)))
    flags = ["-std=gnu++17", "-O1", "-g", "-pthread", "-Wno-psabi", "-ffp-contract=off", *BUILDS[build]]
    checks = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    command = ["g++", *flags, *checks, str(source), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True)
    ran = subprocess.run([str(program)], check=False, capture_output=True, text=True)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert ran.stderr == ""
    assert (ran.returncode, ran.stdout) == (0, "clean\n")


@pytest.mark.slow
def test_two_processes_that_build_at_once_both_get_kernels(tmp_path) -> None:
    """The real compiler, two processes, one empty cache: both end well and one library remains."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    code = (
        "import pathlib, sys, torch\n"
        "from draftproof.reference.kernels.native import build_native\n"
        "kernels = build_native(pathlib.Path(sys.argv[1]))\n"
        "assert kernels.linear(torch.ones(1, 8), kernels.pack(torch.ones(16, 8)))[0, 0] == 8\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(timeout=200) for process in running] == [0, 0]
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1
