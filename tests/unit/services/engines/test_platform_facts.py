"""What engines say of the accelerator, driver, libraries and kernels they run on, in their own forms."""

import msgspec
import pytest

from draftproof.services.engines import ADAPTERS, adapter_for
from draftproof.services.engines.values import name_facts, read_gpu_list, read_smi
from draftproof.services.engines.vllm.settings import read_server_info

# The names are those of vLLM 0.32.0's collect_env, the values those that it writes for what is not there.
SYSTEM = {
    "torch_version": "2.9.1+cu129",
    "cuda_compiled_version": "12.9",
    "cuda_runtime_version": "12.9.86",
    "nvidia_driver_version": "575.57.08",
    "nvidia_gpu_models": "GPU 0: NVIDIA H100 80GB HBM3\nGPU 1: NVIDIA H100 80GB HBM3",
    "cudnn_version": "Could not collect",
    "rocm_version": "N/A",
    "vllm_build_flags": "CUDA Archs: Not Set; ROCm: Disabled",
}


def platform_of(settings):
    return {key.removeprefix("platform."): value for key, value in settings.items() if "platform." in key}


def test_vllm_states_its_environment_where_its_development_mode_is_on():
    """Accelerator, driver, CUDA, torch and build; what could not be collected is absent."""
    told = read_server_info({"vllm_config": {"model_config": {"dtype": "auto"}}, "system_env": SYSTEM})
    assert platform_of(told) == {
        "accelerator": "NVIDIA H100 80GB HBM3",
        "driver": "575.57.08",
        "cuda": "12.9.86",
        "torch": "2.9.1+cu129",
        "engine_build": "CUDA Archs: Not Set; ROCm: Disabled",
    }
    assert told["dtype"] == "auto"


VLLM_LOG = """
INFO [pynccl.py:148] vLLM is using nccl==2.27.5
INFO [cuda.py:507] Using FLASH_ATTN attention backend out of potential backends: [FLASH_ATTN, FLASHINFER].
"""
LLAMACPP_LOG = """
ggml_cuda_init: found 2 CUDA devices (Total VRAM: 48000 MiB):
  Device 0: NVIDIA RTX 4090, compute capability 8.9, VMM: yes, VRAM: 24000 MiB
  Device 1: NVIDIA RTX 4090, compute capability 8.9, VMM: yes, VRAM: 24000 MiB
load_backend: loaded CUDA backend from /opt/libggml-cuda.so
load_backend: loaded CPU backend from /opt/libggml-cpu-zen4.so
0.00.000.306 I build: 4376 (7ae33a616) with cc (Ubuntu 11.4.0) 11.4.0 for x86_64-linux-gnu
"""
TGI_LOG = """
nvidia-smi:
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
"""
LOGS = {
    "vllm": (VLLM_LOG, {"nccl": "2.27.5", "attention_backend": "FLASH_ATTN"}),
    "sglang": ("INFO: sglang is using nccl==2.27.3\n", {"nccl": "2.27.3"}),
    "llamacpp": (
        LLAMACPP_LOG,
        {
            "accelerator": "NVIDIA RTX 4090",
            "kernels": "CPU, CUDA",
            "engine_build": "cc (Ubuntu 11.4.0) 11.4.0 for x86_64-linux-gnu",
        },
    ),
    "tgi": (TGI_LOG, {"driver": "550.54.15", "cuda": "12.4"}),
}


@pytest.mark.parametrize("engine", sorted(LOGS))
def test_what_a_log_says_of_the_platform_is_read(engine):
    """Each engine's own lines; a log without them tells nothing."""
    text, told = LOGS[engine]
    adapter = adapter_for(engine)
    assert platform_of(adapter.read_log(text)) == told
    assert platform_of(adapter.read_log("")) == {}


def test_what_a_service_answers_of_its_platform_is_read():
    """TGI's image, TensorRT-LLM's kind of GPU, the reference engine's torch."""
    info = msgspec.json.encode({"router": "text-generation-router", "sha": "abc", "docker_label": "sha-abc"})
    told = {
        "tgi": {"/info": info},
        "tensorrt-llm": {"/prometheus/metrics": b'trtllm_model_config_info{gpu_type="NVIDIA H100"} 1.0\n'},
        "reference": {"/version": b'{"engine": "draftproof-reference", "platform": {"torch": "2.9.1"}}'},
    }
    settings = {name: ADAPTERS[name].read_identity(bodies).settings for name, bodies in told.items()}
    assert {name: platform_of(found) for name, found in settings.items()} == {
        "tgi": {"engine_build": "sha-abc abc"},
        "tensorrt-llm": {"accelerator": "NVIDIA H100"},
        "reference": {"torch": "2.9.1"},
    }


def test_lists_of_gpus_and_heads_of_smi_are_read_in_their_forms():
    """Kinds of GPU once each, with or without their UUID; a text of another form is none."""
    assert read_gpu_list("GPU 0: NVIDIA A100 (UUID: GPU-1)\nGPU 1: NVIDIA L4 (UUID: GPU-2)") == (
        "NVIDIA A100, NVIDIA L4"
    )
    assert read_gpu_list("Could not collect") is None
    assert read_gpu_list(None) is None
    assert read_smi("no such program") == {}
    assert name_facts({"driver": "N/A", "torch": " 2.9 ", "cuda": None}) == {"platform.torch": "2.9"}
