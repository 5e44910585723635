"""The kernels' threads: who computes a part changes no bit, and nobody waits for an absent one."""

import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tiny_engine import byte_tokenizer, make_engine, make_request, run_all, tiny_model

from draftproof.core.errors import EngineError
from draftproof.reference.kernels import native as native_module
from draftproof.reference.kernels.native import NativeKernels, build_native
from draftproof.reference.kernels.portable import PortableKernels
from draftproof.reference.models.model import TargetModel
from draftproof.reference.proposer import Drafts
from draftproof.reference.weights.fetch import cache_dir


@pytest.fixture
def native() -> NativeKernels:
    """Return the kernels compiled on this machine, on one thread until a test says otherwise."""
    torch.set_num_threads(1)
    try:
        return build_native(cache_dir())
    except EngineError as fault:
        pytest.skip(str(fault))


def _random(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("threads", [2, 3, 7, 300])
def test_any_number_of_threads_gives_the_same_bits(native, threads) -> None:
    """More threads than processors, than parts, or than there can be compute what one thread computes."""
    layer = native.pack(_random(640, 64, seed=1))
    inputs = [_random(rows, 64, seed=rows) for rows in (1, 2, 9)]
    alone = [native.linear(rows, layer) for rows in inputs]
    native.threads = threads
    for _ in range(30):
        assert all(
            torch.equal(native.linear(rows, layer), one) for rows, one in zip(inputs, alone, strict=True)
        )


def test_calls_at_once_get_their_own_results(native) -> None:
    """Four callers that share the threads each get the product of their own rows, every time."""
    layer = native.pack(_random(640, 64, seed=1))
    inputs = [_random(rows, 64, seed=rows) for rows in (1, 3, 5, 8)]
    alone = [native.linear(rows, layer) for rows in inputs]
    native.threads = 3

    def repeat(caller: int) -> bool:
        return all(torch.equal(native.linear(inputs[caller], layer), alone[caller]) for _ in range(200))

    with ThreadPoolExecutor(4) as callers:
        assert list(callers.map(repeat, range(4))) == [True] * 4


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_call_does_not_wait_for_threads_that_never_come(native) -> None:
    """After a fork the other threads are gone; the child's calls still end, with the same bits."""
    layer, rows = native.pack(torch.ones(640, 64)), torch.ones(2, 64)
    native.threads = 2
    before = native.linear(rows, layer)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            code = int(not all(torch.equal(native.linear(rows, layer), before) for _ in range(50)))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


DRIVER = """
#include "SOURCE"
#include <cstdio>
int main() {
  std::atomic<int> done{0};
  const auto caller = std::this_thread::get_id(), nobody = std::thread::id();
  std::atomic<std::thread::id> kept{nobody};
  for (int call = 0; call < 1000 && kept == nobody; call++) {
    done = 0;
    team.share(8, 2, [&](long) {
      std::thread::id none = nobody;
      const auto self = std::this_thread::get_id();
      if (self != caller && kept.compare_exchange_strong(none, self))
        while (done < 7) std::this_thread::yield();  // kept from its processor until all other parts are done
      done++;
    });
  }
  std::puts(kept != nobody && done == 8 ? "done" : "no helper came");
}
"""


@pytest.mark.slow
def test_a_thread_that_is_held_up_holds_up_one_part(tmp_path) -> None:
    """While one thread is stuck in its first part, the other computes all the rest of both shares."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    source, program = tmp_path / "driver.cpp", tmp_path / "driver"
    source.write_text(DRIVER.replace("SOURCE", str(native_module._SOURCE)))
    command = ["g++", "-std=gnu++17", "-pthread", "-Wno-psabi", str(source), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True)
    ran = subprocess.run([str(program)], check=False, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "done\n")


class ThreadCounter:
    """Notes how many threads torch has while an engine drafts; fails when told to."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def propose(self, contexts):
        """Draft nothing."""
        self.seen.append(torch.get_num_threads())
        return Drafts(token_ids=[[] for _ in contexts])

    def release(self, request_id: str) -> None:
        """Keep nothing."""


@pytest.mark.parametrize(("native_kernels", "inside"), [(True, 1), (False, 2)])
def test_torch_computes_on_one_thread_beside_the_kernels_own(native, native_kernels, inside) -> None:
    """A step on native kernels keeps torch to one thread and gives the others back; another does not."""
    counter = ThreadCounter()
    kernels = native if native_kernels else PortableKernels()
    target = TargetModel(tiny_model("llama"), byte_tokenizer(), kernels)
    try:
        torch.set_num_threads(2)
        engine = make_engine(target, proposers={"ngram": counter})
        run_all(engine, [make_request("one", [1, 2, 3], drafts=2, max_tokens=3)])
        assert set(counter.seen) == {inside}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_torch_gets_its_threads_back_from_a_step_that_raises(native, monkeypatch) -> None:
    """A step that fails leaves torch with as many threads as it had."""
    target = TargetModel(tiny_model("llama"), byte_tokenizer(), native)
    engine = make_engine(target)
    engine.add_request(make_request("one", [1, 2, 3]))
    monkeypatch.setattr(target, "forward", lambda *_: 1 / 0)
    try:
        torch.set_num_threads(2)
        with pytest.raises(ZeroDivisionError):
            engine.step()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
