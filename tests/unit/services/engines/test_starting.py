"""Today's service, read from its command: engine, model, address, and what drafts already."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core.errors import UsageError
from draftproof.services.engines import ADAPTERS
from draftproof.services.engines.starting import join_words, read_service

ENGINES = tuple(ADAPTERS.values())
HERE = "--host 127.0.0.1 --port {port}"
UNCACHED, TIMED = "--no-enable-prefix-caching", "--enable-per-request-metrics"
OF_SGLANG = "--disable-radix-cache --enable-metrics --decode-log-interval 1"
DRAFTS = '{"method":"ngram","num_speculative_tokens":3}'


@pytest.mark.parametrize(
    ("text", "engine", "model", "command"),
    [
        (
            "vllm serve org/m --port 8000 --max-model-len 2048",
            "vllm",
            "org/m",
            f"vllm serve {{model}} --max-model-len 2048 {HERE} {UNCACHED} {TIMED}",
        ),
        (
            "/opt/v/bin/vllm serve --model=org/m --enable-prefix-caching --host=0.0.0.0",
            "vllm",
            "org/m",
            f"/opt/v/bin/vllm serve --model={{model}} --enable-prefix-caching {HERE} {TIMED}",
        ),
        (
            "python -m vllm.entrypoints.openai.api_server --model m --no-enable-prefix-caching",
            "vllm",
            "m",
            f"python -m vllm.entrypoints.openai.api_server --model {{model}} {UNCACHED} {HERE} {TIMED}",
        ),
        (
            "llama-server -m m.gguf -c 4096 --metrics",
            "llamacpp",
            "m.gguf",
            "llama-server -m {model} -c 4096 --metrics --host 127.0.0.1 --port {port} -cram 0",
        ),
        (
            "llama-server -hf org/m:Q8_0 -c 4096 --metrics",
            "llamacpp",
            "org/m:Q8_0",
            "llama-server -hf {model} -c 4096 --metrics --host 127.0.0.1 --port {port} -cram 0",
        ),
        (
            "python3 -m sglang.launch_server --model-path m",
            "sglang",
            "m",
            f"python3 -m sglang.launch_server --model-path {{model}} {HERE} {OF_SGLANG}",
        ),
        (
            "text-generation-launcher --model-id m -p 80",
            "tgi",
            "m",
            "text-generation-launcher --model-id {model} --hostname 127.0.0.1 --port {port} --speculate 0",
        ),
        (
            "draftproof serve --max-num-seqs 4",
            "reference",
            "builtin:smollm2-135m-instruct",
            f"draftproof serve --max-num-seqs 4 {HERE}",
        ),
        ("trtllm-serve m", "tensorrt-llm", "m", "trtllm-serve {model} --host 127.0.0.1 --port {port}"),
    ],
)
def test_a_command_is_the_service_at_a_free_port_of_this_machine(text, engine, model, command):
    """Only model, address and what the measurement adds differ from what somebody types every day."""
    found = read_service(text, ENGINES)
    assert (found.engine, found.model, join_words(found.command)) == (engine, model, command)
    assert found.drafting == ()


def test_variables_in_front_of_a_command_are_its_environment():
    """As a shell has them, with and without env."""
    for text in ("A=1 B='x y' vllm serve m", "env A=1 'B=x y' vllm serve m"):
        env = read_service(text, ENGINES).env
        assert (env["A"], env["B"]) == ("1", "x y")


@pytest.mark.parametrize(
    ("text", "method", "drafting"),
    [
        (
            "vllm serve m --spec-model d --spec-tokens 3",
            "speculation",
            ("--spec-model", "d", "--spec-tokens", "3"),
        ),
        (
            f"vllm serve m --speculative-config '{DRAFTS}' --max-num-seqs 4",
            "ngram",
            ("--speculative-config", DRAFTS),
        ),
        (
            "llama-server -m m.gguf --spec-type draft-simple -md d.gguf -c 2048",
            "draft-simple",
            ("--spec-type", "draft-simple", "-md", "d.gguf"),
        ),
    ],
)
def test_what_drafts_already_becomes_the_candidates(text, method, drafting):
    """The baseline is the same service without it."""
    found = read_service(text, ENGINES)
    assert (found.method, found.drafting) == (method, drafting)
    assert not set(drafting[1:]) & set(found.command)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the command is empty"),
        (
            "vllm serve",
            "the model is not where it is looked for: right behind 'vllm serve', or behind --model",
        ),
        ("vllm serve --port 3 m", "the model is not where it is looked for"),
        ("vllm serve m | tee log", "'|' is for a shell"),
        ("vllm serve m > log 2>&1 &", "'>' is for a shell"),
        (
            "vllm serve $MODEL",
            "$MODEL is for a shell, and the command is run without one. Fix: write ${MODEL}",
        ),
        ("HF_TOKEN=hf_abcdefghijk vllm serve m", "the variable HF_TOKEN states a secret"),
        ("vllm serve m --api-key abcdef", "states the value of --api-key"),
        ("vllm serve 'm", "cannot be split into words (No closing quotation). Fix: close"),
        ("docker run vllm/vllm-openai", "docker starts the service outside"),
        ("vllm serve m --speculative-model d", "the command drafts already, by --speculative-model"),
        ("draftproof serve --speculation ngram", "the command drafts already, by --speculation. Fix: leave"),
        ("text-generation-launcher --model-id m --speculate 2", "the command drafts already, by --speculate"),
        ("ollama serve", "no engine is known that is started by 'ollama'. Fix: begin with one of:"),
    ],
)
def test_a_command_that_cannot_be_used_is_one_sentence_with_the_fix(text, said):
    """The message names the option."""
    with pytest.raises(UsageError) as caught:
        read_service(text, ENGINES)
    assert said in str(caught.value)
    assert str(caught.value).startswith("--serve: ")


@given(st.lists(st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1), max_size=6))
def test_joined_words_are_split_into_the_same_words(words):
    """Whatever a command holds, its one string means the same."""
    assert shlex.split(join_words(words)) == words
