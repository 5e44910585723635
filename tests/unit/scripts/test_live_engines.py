"""What `scripts/live-engines` tells the build of llama.cpp."""

import platform
import shlex
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "live-engines"
OFF = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
MACROS = ("__AMX_TILE__", "__AMX_INT8__", "__AMX_BF16__")
# Stands for `python -m venv FOLDER`: its pip writes down what CMake would be told.
PYTHON = """#!/bin/sh
mkdir -p "$3/bin"
printf '#!/bin/sh\\nprintf %%s "$CMAKE_ARGS" > "%s"\\n' "$PWD/told" > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""


def build(folder: Path, compiler: str) -> list[str]:
    """Return the arguments that CMake gets where `compiler` is the C compiler."""
    for name, text in (("python", PYTHON), (".venv/bin/python", "#!/bin/sh\necho server\n")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    functions = (
        f"$(sed -n '/^flags_without_amx/,/^}}/p; /^install_llamacpp/,/^}}/p' {shlex.quote(str(SCRIPT))})"
    )
    program = f'set -eu; say() {{ :; }}; eval "{functions}"; install_llamacpp'
    variables = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHON": str(folder / "python"),
        "DRAFTPROOF_ENGINES": str(folder / "engines"),
        "LLAMA_RELEASE": "7",
        "CC": compiler,
    }
    subprocess.run(["bash", "-c", program], cwd=folder, env=variables, check=True)
    return shlex.split((folder / "told").read_text())


def test_the_build_makes_no_tiles(tmp_path):
    """Options and compiler flags reach CMake, each flag list as one argument."""
    told = build(tmp_path, "true")
    assert {f"-DGGML_AMX_{kind}=OFF" for kind in ("TILE", "INT8", "BF16")} <= set(told)
    assert {f"-DCMAKE_C_FLAGS={OFF}", f"-DCMAKE_CXX_FLAGS={OFF}", "-DLLAMA_BUILD_NUMBER=7"} <= set(told)


def test_a_compiler_that_knows_no_tiles_is_not_told_of_them(tmp_path):
    """An unknown flag would end the build of another machine."""
    told = build(tmp_path, "false")
    assert "-DGGML_AMX_INT8=OFF" in told
    assert not any(one.startswith("-DCMAKE_C") for one in told)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is of x86-64")
@pytest.mark.parametrize("flags", [(OFF, "-march=sapphirerapids"), ("-march=sapphirerapids", OFF)])
def test_the_flags_undo_what_a_machine_with_tiles_switches_on(flags):
    """The macros that ggml asks for are gone, in whichever order the flags come."""
    words = " ".join(flags).split()
    seen = subprocess.run(
        ["cc", *words, "-dM", "-E", "-x", "c", "/dev/null"], capture_output=True, text=True, check=False
    )
    if seen.returncode:
        pytest.skip("this compiler knows no machine with tiles")
    assert not [macro for macro in MACROS if macro in seen.stdout]
