"""A whole run on the real engine: a tiny random model, every arm a process of `draftproof serve`."""

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PLAN = """\
name = "tiny"
[target]
model = "./model"
[workload]
path = "items.jsonl"
max_tokens = 24
[[load]]
name = "busy"
concurrency = 2
block_size = 8
[arms.baseline.settings]
"speculation.method" = "off"
max_model_len = 512
num_threads = 1
[arms.candidate.settings]
"speculation.method" = "ngram"
"speculation.num_spec_tokens" = 3
max_model_len = 512
num_threads = 1
[comparison]
resamples = 200
[limits]
warmup_requests = 1
client_lag_ms = 5000.0
repeat_disturbed = false
"""
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


@pytest.fixture
def tiny_model(tmp_path):
    """Save a two-layer random Llama over bytes as a model folder."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=0,
    )
    folder = tmp_path / "model"
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", chat_template=TEMPLATE)  # noqa: S106
    tokenizer.save_pretrained(folder)
    return folder


def assert_equal_behaviour(probes):
    """The engine forces calls and schemas, stops work for nobody, and does so with drafts as without."""
    found = {(one["arm"], one["probe"]): one["status"] for one in probes}
    assert {arm for arm, _ in found} == {"baseline", "candidate"}
    for probe in ("streaming_shape", "max_tokens", "cancel_stops_work", "cancel_frees_slots"):
        assert found["baseline", probe] == found["candidate", probe] == "passed", probes
    for probe in ("tool_call", "json_schema", "seed_repeats"):  # a random model may not come to an end
        assert {found["baseline", probe], found["candidate", probe]} <= {"passed", "unknown"}, probes
    assert "failed" not in found.values(), probes
    assert "unsupported" not in found.values(), probes


@pytest.mark.slow
def test_three_arms_of_the_real_engine_give_a_verdict_on_equal_answers(stage, tiny_model):
    """Baseline, candidate and null arm of the engine run to a verdict; greedy answers are the same tokens."""
    plan = stage.folder / "plan.toml"
    plan.write_text(PLAN)
    assert tiny_model.is_dir()
    with stage.start("run", plan, "--out", stage.out) as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode in {0, 10, 20, 30}, err
    assert err == ""
    assert "Report: " in out
    results = json.loads((stage.out / "results.json").read_bytes())
    assert results["arms"] == ["baseline", "candidate", "baseline_null"]
    assert results["counts"]["measured"] == 24
    assert {record["outcome"] for record in stage.measured()} == {"ok"}
    texts: dict[str, set[tuple[int, ...]]] = {}
    for record in stage.measured():
        texts.setdefault(record["item_id"], set()).add(tuple(record["token_ids"]))
    assert {len(answers) for answers in texts.values()} == {1}
    steps = {record["arm"]: 0 for record in stage.measured()}
    for record in stage.measured():
        steps[record["arm"]] += sum(proposed > 0 for proposed, *_ in record["rounds"])
    assert steps["candidate"] > 0
    assert steps["baseline"] == steps["baseline_null"] == 0
    assert not [text for text in results["warnings"] if "at odds" in text]
    assert_equal_behaviour(results["behaviour"])
    assert {log.name for log in (stage.out / "logs").iterdir()} == {
        "baseline.log",
        "candidate.log",
        "baseline_null.log",
    }
    stage.assert_no_orphans()
