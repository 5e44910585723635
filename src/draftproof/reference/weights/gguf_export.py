"""Turns a packed GGUF file into a plain Hugging Face folder: bf16 safetensors, tokenizer, chat template.

Runs as a program of its own (`python -m draftproof.reference.weights.gguf_export GGUF FOLDER`), so that its
memory goes back when it ends and its libraries' chatter stays out of the caller's terminal.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any


def export_gguf(gguf_path: Path, folder: Path) -> None:
    """Write the model of `gguf_path` to `folder`, de-quantised to bfloat16.

    The packed weights are expanded in float32 and rounded once, so the result does not depend on the
    number of threads or on the machine.
    """
    import torch  # noqa: PLC0415  (seconds to import; only this step needs it)
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415
    from transformers.utils.quantization_config import GgufConfig  # noqa: PLC0415

    source = {"pretrained_model_name_or_path": str(gguf_path.parent), "gguf_file": gguf_path.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    restore_digit_splitting(tokenizer)
    tokenizer.save_pretrained(folder)


def restore_digit_splitting(tokenizer: Any) -> None:
    """Split digits one by one before byte-pair merging, as the model's own tokenizer does.

    GGUF names this rule (`tokenizer.ggml.pre` is "smollm") and the conversion keeps only the byte-level
    half of it; without it, spaces before a number become other tokens than the model was trained on.
    """
    from tokenizers import pre_tokenizers as pre  # noqa: PLC0415

    tokenizer.backend_tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=True)]
    )


def digest_tensors(safetensors_path: Path) -> str:
    """Return one SHA-256 over all tensors in name order: name, dtype, shape, bytes.

    Unlike the file's hash it does not move with the file format's header or tensor order, so a pinned
    value survives new versions of the libraries that write the file.
    """
    import torch  # noqa: PLC0415
    from safetensors import safe_open  # noqa: PLC0415

    digest = hashlib.sha256()
    with safe_open(safetensors_path, framework="pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            # numpy has no bfloat16, hence the view as bytes; they are in row-major order.
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main(arguments: list[str]) -> int:
    """Export `GGUF FOLDER` and print the weights' digest as the last line."""
    gguf_path, folder = (Path(argument) for argument in arguments)
    export_gguf(gguf_path, folder)
    sys.stdout.write(digest_tensors(folder / "model.safetensors") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
