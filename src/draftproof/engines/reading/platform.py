"""What a service runs on, as engines write it: accelerator, driver, libraries, kernels. Pure.

A fact stands among an engine's settings below `platform.`, and in the manifest apart from them. What a text
does not say, or says to be unavailable, is absent.
"""

import re
from collections.abc import Iterable, Mapping

from draftproof.engines.facts import PLATFORM, Settings

_UNTOLD = frozenset({"", "N/A", "None", "Could not collect"})
_GPU = re.compile(r"^(?:GPU )?\d+: (.+?)(?: \(UUID: [^)]*\))?$", re.MULTILINE)
_SMI = re.compile(r"Driver Version: (\S+)\s+CUDA Version: (\S+)")
_NCCL = re.compile(r"\bis using nccl==(\S+)")


def name_facts(facts: Mapping[str, object]) -> Settings:
    """Return facts of the platform under their names as settings; what is not told is left out."""
    told = {name: value.strip() for name, value in facts.items() if isinstance(value, str)}
    return {f"{PLATFORM}{name}": value for name, value in told.items() if value not in _UNTOLD}


def join_names(names: Iterable[str]) -> str | None:
    """Return the kinds of device there are, each once; how many is the budget's to say."""
    return ", ".join(sorted({name.strip() for name in names if name.strip()})) or None


def read_gpu_list(text: object) -> str | None:
    """Return the kinds of GPU in a list of lines "GPU 0: NAME", as `nvidia-smi -L` writes it."""
    return join_names(_GPU.findall(text)) if isinstance(text, str) else None


def read_smi(text: str) -> Settings:
    """Return driver and CUDA version of the head that `nvidia-smi` prints, wherever it stands in a text."""
    found = _SMI.search(text)
    return name_facts({"driver": found[1], "cuda": found[2]}) if found else {}


def read_nccl(text: str) -> Settings:
    """Return the NCCL version that vLLM's and SGLang's communicator logs."""
    found = _NCCL.search(text)
    return name_facts({"nccl": found[1]}) if found else {}
