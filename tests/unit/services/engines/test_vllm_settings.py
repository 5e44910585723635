"""vLLM's settings, read from its command, its log and what it says of itself; release 0.32.0."""

from pathlib import Path

import pytest

from draftproof.services.engines.vllm import VLLM

RECORDED = Path(__file__).parents[3] / "fixtures" / "payloads" / "vllm"
SERVER_INFO = "/server_info?config_format=json"
SERVE = ("vllm", "serve", "/models/target")
NGRAM = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":2}'


def load(name):
    return (RECORDED / name).read_bytes()


def read(*flags):
    return VLLM.read_flags((*SERVE, *flags))


def test_a_command_without_speculation_is_off():
    """The baseline says so, and its other flags are settings; address and names are not."""
    assert read("--max-num-seqs", "8", "--port=8000", "--served-model-name", "m", "--dtype", "bfloat16") == {
        "max_num_seqs": 8,
        "dtype": "bfloat16",
        "speculation.method": "off",
    }


def test_a_command_that_names_a_file_of_flags_leaves_speculation_open():
    """The file may switch it on; the log will tell."""
    assert "speculation.method" not in read("--config", "more.yaml")


@pytest.mark.parametrize(
    "flags",
    [
        ("--speculative-config", NGRAM),
        ("-sc", NGRAM),
        (f"--speculative-config={NGRAM}",),
        (
            *("--speculative-config.method", "ngram", "--speculative_config.prompt-lookup-min", "2"),
            *("-sc.num_speculative_tokens", "4"),
        ),
        ("--spec-method", "ngram", "--spec-tokens", "4", "-sc", '{"prompt_lookup_min":2}'),
    ],
)
def test_speculation_has_one_set_of_names_however_it_is_spelled(flags):
    """JSON, dotted flags and shortcuts give the same settings."""
    assert read(*flags) == {
        "speculation.method": "ngram",
        "speculation.num_spec_tokens": 4,
        "speculation.prompt_lookup_min": 2,
    }


def test_a_draft_model_is_the_drafter():
    """Its folder or id is the plan's setting `drafter`, also by shortcut."""
    wanted = {
        "speculation.method": "draft_model",
        "speculation.num_spec_tokens": 3,
        "drafter": "/models/draft",
    }
    config = '{"method":"draft_model","model":"/models/draft","num_speculative_tokens":3}'
    assert read("--speculative-config", config) == wanted
    assert (
        read("--spec-method", "draft_model", "--spec-model", "/models/draft", "--spec-tokens", "3") == wanted
    )


# `MTPModelTypes` of vllm/config/speculative.py; a later release's names end the same way.
HEADS = (
    *(
        "deepseek_mtp",
        "dots3_note_mtp",
        "mimo_mtp",
        "mimo_v2_mtp",
        "glm4_moe_mtp",
        "glm4_moe_lite_mtp",
        "glm_ocr_mtp",
    ),
    *(
        "ernie_mtp",
        "nemotron_h_mtp",
        "exaone_moe_mtp",
        "exaone4_5_mtp",
        "qwen3_next_mtp",
        "qwen4_exp_mtp",
        "qwen3_5_mtp",
    ),
    *(
        "longcat_flash_mtp",
        "bailing_hybrid_v3_mtp",
        "minimax_m3_mtp",
        "bailing_hybrid_mtp",
        "mtp",
        "kimi_k3_mtp",
    ),
    *(
        "pangu_ultra_moe_mtp",
        "step3p5_mtp",
        "hy_v3_mtp",
        "hy_v4_mtp",
        "gemma4_mtp",
        "inkling_mtp",
        "glm5_next_mtp",
    ),
)


@pytest.mark.parametrize("method", HEADS)
def test_every_name_of_a_models_own_heads_is_mtp(method):
    """Each is replaced by mtp, whether the whole configuration or its method alone is given."""
    whole = read("-sc", f'{{"method":"{method}","num_speculative_tokens":1}}')
    assert whole == read("--speculative-config.method", method, "--spec-tokens", "1")
    assert whole["speculation.method"] == "mtp"
    assert VLLM.facts.families[VLLM.facts.name_method(method)] == "attached"


@pytest.mark.parametrize("method", ["ngram", "eagle3", "draft_model", "suffix", "dflash"])
def test_a_name_of_its_own_stays(method):
    """Only what vLLM maps is mapped."""
    assert read("--spec-method", method)["speculation.method"] == method


def test_the_bracketed_lookup_is_ngram():
    """The name is taken for a method as for a model."""
    assert read("-sc", '{"method":"[ngram]","num_speculative_tokens":3}')["speculation.method"] == "ngram"


def test_a_method_that_vllm_would_infer_stays_open():
    """It depends on the draft's own configuration; only the n-gram model's name is a method's name."""
    assert read("--spec-model", "/models/draft", "--spec-tokens", "3") == {
        "drafter": "/models/draft",
        "speculation.num_spec_tokens": 3,
    }
    assert read("-sc", '{"model":"[ngram]","num_speculative_tokens":3}')["speculation.method"] == "ngram"


def test_flags_that_switch_something_off_are_false():
    """`--no-x` and `--x` are one setting with two values, and a switch takes no word after it."""
    assert VLLM.read_flags(
        ("vllm", "serve", "--no-async-scheduling", "--enforce-eager", "/models/target", "-tp", "2")
    ) == {
        "async_scheduling": False,
        "enforce_eager": True,
        "tensor_parallel_size": 2,
        "speculation.method": "off",
    }
    assert read("--async-scheduling")["async_scheduling"] is True


def test_json_flags_become_dotted_settings():
    """A difference inside a JSON flag is named by its key; text that is no JSON stays whole."""
    assert read("-cc", '{"cudagraph_mode":"NONE"}')["compilation_config.cudagraph_mode"] == "NONE"
    assert read("-cc.cudagraph_mode", "NONE")["compilation_config.cudagraph_mode"] == "NONE"
    assert read("--speculative-config", "{broken")["speculative_config"] == "{broken"


def test_the_metrics_flag_of_speculation_counts_to_it():
    """A server without speculation refuses the flag, so no baseline can have it."""
    settings = read("-sc", NGRAM, "--per-request-spec-decode-metrics", "detailed")
    assert settings["speculation.per_request_metrics"] == "detailed"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("off", {"speculation.method": "off", "capacity.kv_cache_tokens": 46592}),
        (
            "ngram",
            {
                "speculation.method": "ngram",
                "speculation.num_spec_tokens": 4,
                "async_scheduling": False,
                "capacity.kv_cache_tokens": 46592,
                "capacity.max_num_scheduled_tokens": 2048,
            },
        ),
        (
            "draft",
            {
                "speculation.method": "draft_model",
                "speculation.num_spec_tokens": 3,
                "drafter": "/models/draft",
                "enforce_eager": True,
                "capacity.kv_cache_tokens": 43648,
                "capacity.max_num_scheduled_tokens": 2048,
            },
        ),
    ],
)
def test_the_log_tells_what_is_in_force(name, told):
    """Method, draft length, drafter, scheduling, runner and cache are read from the start's own lines."""
    always = {
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "kv_cache_dtype": "auto",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "enforce_eager": False,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "compilation_config.cudagraph_mode": "NONE",
        "model_runner": "V1",
    }
    assert VLLM.read_log(load(f"log_{name}.txt").decode()) == always | told


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("", {}),
        ("INFO Using V2 Model Runner", {"model_runner": "V2"}),
        (
            "WARNING Model Runner V2 does not yet support X; using the V1 model runner instead.",
            {"model_runner": "V1"},
        ),
        (
            "WARNING Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE for reliability.",
            {"compilation_config.cudagraph_mode": "PIECEWISE"},
        ),
        ("INFO GPU KV cache size: 1,234,567 tokens", {"capacity.kv_cache_tokens": 1234567}),
        ("a line that another release writes", {}),
    ],
)
def test_a_line_of_the_log_is_read_by_itself(line, settings):
    """What only a GPU writes (words from the source of 0.32.0), and what no release writes."""
    assert VLLM.read_log(line) == settings


def identity(**bodies):
    paths = {"version": "/version", "models": "/v1/models", "info": SERVER_INFO}
    return VLLM.read_identity({paths[name]: body for name, body in bodies.items()})


def test_a_service_tells_its_name_and_release():
    """/version and the owner of its models are enough; settings stay empty without development mode."""
    told = identity(version=load("version.json"), models=load("models.json"))
    assert (told.engine, told.version, told.settings) == ("vllm", "0.32.0", {})
    release = VLLM.facts.find_release(told.version)
    assert release is not None
    assert release.how == "live"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("off", {"speculation.method": "off"}),
        (
            "ngram",
            {
                "speculation.method": "ngram",
                "speculation.num_spec_tokens": 4,
                "speculation.prompt_lookup_min": 2,
                "speculation.prompt_lookup_max": 4,
                "speculation.rejection_sample_method": "standard",
            },
        ),
        (
            "draft",
            {
                "speculation.method": "draft_model",
                "speculation.num_spec_tokens": 3,
                "drafter": "/models/draft",
                "enforce_eager": True,
                "capacity.kv_cache_tokens": 43648,
            },
        ),
        ("idle", {"speculation.num_speculative_tokens_per_batch_size": "[[1, 1, 0], [2, 8, 4]]"}),
    ],
)
def test_development_mode_tells_the_settings_in_force(name, told):
    """/server_info gives the resolved settings, those of speculation among them."""
    settings = identity(info=load(f"server_info_{name}.json")).settings
    assert told.items() <= settings.items()
    assert settings["max_num_seqs"] == 8
    assert settings["max_num_batched_tokens"] == 2048
    assert settings["async_scheduling"] is False
    assert settings["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "bodies",
    [
        {},
        {"version": b"<html>", "models": b"[]", "info": b"{"},
        {"version": b'{"version":1}', "models": b'{"data":[3]}', "info": b'{"vllm_config":"text"}'},
    ],
)
def test_another_release_or_another_service_says_nothing(bodies):
    """Missing and strange bodies give no name, no release and no settings, and no error."""
    told = identity(**bodies)
    assert (told.version, told.settings) == (None, {})


def test_every_confound_of_the_fixtures_has_its_setting():
    """What the logs show to differ between the arms is named by a confound with a way to pin it."""
    off, ngram, draft = (
        VLLM.read_log(load(f"log_{name}.txt").decode()) for name in ("off", "ngram", "draft")
    )
    differing = {
        key
        for other in (ngram, draft)
        for key in off.keys() | other.keys()
        if off.get(key) != other.get(key) and not key.startswith("speculation.")
    }
    # The recorded draft arm was started without compilation; that is a flag of its own.
    known = {"drafter", "enforce_eager"} | {key for one in VLLM.facts.confounds for key in one.settings}
    assert differing <= known
    assert all(one.pin for one in VLLM.facts.confounds)
