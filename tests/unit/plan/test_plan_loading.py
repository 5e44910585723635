"""Reading plans: what is right is kept, what is wrong is said in one sentence with its place."""

from pathlib import Path

import pytest

from draftproof.core.errors import PlanError
from draftproof.plan.loading import (
    load_builtin_plan,
    load_plan,
    parse_plan,
    plan_sha256,
    render_plan,
    thresholds_sha256,
)

MINIMAL = """\
name = "small"
[[load]]
name = "single"
concurrency = 1
[arms.baseline]
[arms.candidate]
"""


def fault(text: str) -> PlanError:
    with pytest.raises(PlanError) as caught:
        parse_plan(text, source="my.toml")
    return caught.value


def test_minimal_plan_has_the_defaults_of_the_schema():
    """A plan that states only what is required gets every other value from the schema."""
    plan = parse_plan(MINIMAL)
    assert plan.thresholds.minimum_gain == 0.05
    assert plan.arms.alternative is None


def test_unknown_key_names_file_full_key_and_close_match():
    """A mistyped key is an error that names the file, the dotted key and what was meant."""
    error = fault(MINIMAL + "[thresholds]\nminimun_gain = 0.1\n")
    assert str(error) == "my.toml: unknown key thresholds.minimun_gain. Fix: perhaps minimum_gain is meant."


def test_unknown_key_inside_a_list_is_named_with_its_index():
    """A mistyped key of the second load level is named load[1]."""
    error = fault(MINIMAL + '[[load]]\nname = "busy"\nconcurrency = 8\nrepeat = 2\n')
    assert "unknown key load[1].repeat" in str(error)
    assert "repeats" in str(error)


def test_known_key_in_the_wrong_table_is_sent_to_the_right_one():
    """A key that exists elsewhere is told where it belongs."""
    error = fault("minimum_gain = 0.1\n" + MINIMAL)
    assert "Fix: write it as thresholds.minimum_gain." in str(error)


def test_unknown_key_without_a_close_match_lists_what_is_known():
    """A key that resembles nothing gets the list of known keys."""
    error = fault(MINIMAL + "[limits]\nzzz = 1\n")
    assert "known here: ready_s, request_s" in str(error)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "[thresholds]\nminimum_gain = 1.5",
            "thresholds.minimum_gain is 1.5, allowed is above 0 and below 1.",
        ),
        (
            "[comparison]\nconfidence = 0.5",
            "comparison.confidence is 0.5, allowed is at least 0.8 and at most 0.999.",
        ),
        ("[thresholds]\ncritical_errors = -1", "thresholds.critical_errors is -1, allowed is at least 0."),
        ("[objectives]\nttft_ms = 0", "objectives.ttft_ms is 0, allowed is above 0."),
        ('[target]\ndtype = "float16"', "target.dtype is 'float16', allowed is one of float32, bfloat16."),
        ('[limits]\nready_s = "soon"', "limits.ready_s is 'soon', allowed is a number, above 0."),
        ("[workload]\nsegment_by = []", "workload.segment_by is [], allowed is at least 1 entry."),
    ],
)
def test_value_out_of_range_names_key_value_and_range(lines, said):
    """A value out of range is an error that names the key, the value and what is allowed."""
    assert said in str(fault(f"{MINIMAL}{lines}\n"))


def test_setting_of_a_wrong_type_is_named_without_the_branches_of_the_type():
    """A setting that is a list is named by the key that was written, nothing more."""
    error = fault(MINIMAL + "[arms.candidate.settings]\nmax_num_seqs = [8]\n")
    assert "arms.candidate.settings.max_num_seqs is [8]" in str(error)


def test_missing_key_is_named():
    """A plan without a candidate says so."""
    error = fault(MINIMAL.replace("[arms.candidate]\n", ""))
    assert "the key arms.candidate is missing." in str(error)


def test_further_errors_are_counted():
    """Of three mistakes the first is told and two are counted."""
    error = fault(MINIMAL + "[thresholds]\nminimun_gain = 0.1\nharm_margin = 2\nttft_margin = 9\n")
    assert "(2 further errors in this file)." in str(error)


def test_toml_fault_has_its_line():
    """Text that is not TOML is an error with the line."""
    error = fault('name = "x"\nseed = = 1\n')
    assert error.place == "my.toml:2"
    assert "not valid TOML" in error.message


def test_toml_fault_at_the_end_has_the_last_line():
    """A table that never closes is an error with the last line."""
    assert fault('name = "x"\nload = [').place == "my.toml:2"


def test_toml_nested_too_deeply_is_refused():
    """Nesting beyond what can be read is one sentence, not a traceback."""
    found = fault("a = " + "[" * 5000 + "]" * 5000)
    assert "nested too deeply" in str(found)


def test_an_infinite_limit_is_refused():
    """A limit that can never be passed is no limit: client_lag_ms = inf would silence the client's check."""
    found = fault(MINIMAL + "\n[limits]\nclient_lag_ms = inf\n")
    assert "limits.client_lag_ms is inf" in str(found)


def test_equal_load_level_names_are_refused():
    """Two load levels of one name are an error in one sentence."""
    error = fault(MINIMAL + '[[load]]\nname = "single"\nconcurrency = 2\n')
    assert "load level names must differ" in str(error)


def test_missing_plan_file_is_one_sentence(tmp_path: Path):
    """A path without a file is an error that names the path."""
    with pytest.raises(PlanError, match="there is no such file"):
        load_plan(tmp_path / "absent.toml")


def test_plan_that_is_not_text_is_refused(tmp_path: Path):
    """A plan in another encoding is an error that says so."""
    (tmp_path / "plan.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(PlanError, match="not UTF-8"):
        load_plan(tmp_path / "plan.toml")


def test_folder_as_plan_is_refused(tmp_path: Path):
    """A folder given as plan is an error, not a traceback."""
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path)


def test_relative_workload_is_taken_from_the_folder_of_the_plan(tmp_path: Path):
    """A relative workload path does not depend on the folder the program runs in."""
    (tmp_path / "plan.toml").write_text(MINIMAL + '[workload]\npath = "items.jsonl"\n')
    plan, text = load_plan(tmp_path / "plan.toml")
    assert plan.workload.path == str(tmp_path / "items.jsonl")
    assert parse_plan(text) == plan


def test_local_model_and_drafter_paths_are_resolved_and_a_model_id_is_not(tmp_path: Path):
    """A model id stays as it is; a folder beside the plan becomes absolute."""
    (tmp_path / "model").mkdir()
    text = MINIMAL + '[target]\nmodel = "model"\n[arms.candidate.drafter]\npath = "draft"\n'
    (tmp_path / "plan.toml").write_text(text)
    plan, _ = load_plan(tmp_path / "plan.toml")
    assert plan.target.model == str(tmp_path / "model")
    assert plan.arms.candidate.drafter["path"] == str(tmp_path / "draft")
    (tmp_path / "plan.toml").write_text(text.replace('"model"', '"owner/name"'))
    assert load_plan(tmp_path / "plan.toml")[0].target.model == "owner/name"


def test_target_that_is_one_file_is_taken_from_the_folder_of_the_plan(tmp_path: Path):
    """A GGUF file beside the plan becomes absolute, as a folder does; a link keeps its own name."""
    (tmp_path / "blob").write_bytes(b"GGUF")
    (tmp_path / "target.gguf").symlink_to(tmp_path / "blob")
    (tmp_path / "plan.toml").write_text(MINIMAL + '[target]\nmodel = "target.gguf"\n')
    assert load_plan(tmp_path / "plan.toml")[0].target.model == str(tmp_path / "target.gguf")


@pytest.mark.parametrize(
    ("arm", "name", "is_resolved"),
    [
        ("", "mine", True),
        ("", "./absent", True),
        ("", "builtin:attached", False),
        ("", "absent", False),
        ('url = "http://127.0.0.1:1"\n', "mine", False),
        ('engine = "vllm"\nurl = "http://127.0.0.1:1"\n', "mine", False),
    ],
)
def test_drafter_of_a_launched_reference_engine_is_taken_from_the_folder_of_the_plan(
    tmp_path: Path, arm, name, is_resolved
):
    """A drafter's folder beside the plan becomes absolute; a name, and what a running service says, stays."""
    (tmp_path / "mine").mkdir()
    text = MINIMAL + arm + f'[arms.candidate.settings]\ndrafter = "{name}"\nmax_num_seqs = 8\n'
    (tmp_path / "plan.toml").write_text(text)
    plan, written = load_plan(tmp_path / "plan.toml")
    wanted = str(tmp_path / name.removeprefix("./")) if is_resolved else name
    assert plan.arms.candidate.settings == {"drafter": wanted, "max_num_seqs": 8}
    assert parse_plan(written) == plan


def test_paths_inside_a_command_and_its_environment_stay_as_they_are(tmp_path: Path):
    """A launched program finds its own files, even where one of that name lies beside the plan."""
    (tmp_path / "mine").mkdir()
    text = MINIMAL + 'command = ["serve", "mine", "{port}"]\nenv = { HOME_OF_IT = "mine" }\n'
    (tmp_path / "plan.toml").write_text(text)
    plan, written = load_plan(tmp_path / "plan.toml")
    assert plan.arms.candidate.command == ("serve", "mine", "{port}")
    assert plan.arms.candidate.env == {"HOME_OF_IT": "mine"}
    assert written == text


def test_precision_is_left_open_unless_the_plan_states_it():
    """Only the reference engine takes its precision from the plan, so none is assumed for the others."""
    assert parse_plan(MINIMAL).target.dtype is None
    assert parse_plan(MINIMAL + '[target]\ndtype = "bfloat16"\n').target.dtype == "bfloat16"


def test_thresholds_hash_does_not_depend_on_the_target():
    """Runs keep their hash of what decides, whatever the plan says of the target's precision."""
    stated = parse_plan(MINIMAL + '[target]\ndtype = "float32"\n')
    assert thresholds_sha256(stated) == thresholds_sha256(parse_plan(MINIMAL))


def test_text_without_relative_paths_is_kept_byte_for_byte(tmp_path: Path):
    """A plan that needs no resolution is kept with its comments."""
    text = "# why\r\n" + MINIMAL
    (tmp_path / "plan.toml").write_bytes(text.encode())
    assert load_plan(tmp_path / "plan.toml")[1] == text


def test_nested_and_quoted_settings_mean_the_same():
    """`speculation.method` may be written as a table or as a quoted key."""
    nested = parse_plan(MINIMAL + '[arms.candidate.settings.speculation]\nmethod = "ngram"\n')
    quoted = parse_plan(MINIMAL + '[arms.candidate.settings]\n"speculation.method" = "ngram"\n')
    assert nested == quoted
    assert nested.arms.candidate.settings == {"speculation.method": "ngram"}


def test_plan_hash_changes_with_any_byte():
    """The plan's hash is that of the text, comments included."""
    assert plan_sha256(MINIMAL) != plan_sha256(MINIMAL + "# x\n")


@pytest.mark.parametrize(
    ("lines", "changes"),
    [
        ("seed = 9\n", False),
        ("# a comment\n", False),
        ("[thresholds]\nminimum_gain = 0.05\n", False),
        ("[thresholds]\nminimum_gain = 0.06\n", True),
        ('[comparison]\nmetric = "e2e_from_schedule_ns"\n', True),
        ("[objectives]\nttft_ms = 500.0\n", True),
    ],
)
def test_thresholds_hash_depends_on_what_decides_and_on_nothing_else(lines, changes):
    """Only thresholds, comparison and objectives enter the hash; a default written out is no change."""
    text = lines + MINIMAL if lines.startswith(("seed", "#")) else MINIMAL + lines
    assert (thresholds_sha256(parse_plan(text)) != thresholds_sha256(parse_plan(MINIMAL))) is changes


def test_demo_plan_is_a_plan_and_its_text_states_it():
    """The demo's text reads back as the demo's plan, with three arms and two loads."""
    plan, text = load_builtin_plan("demo")
    assert parse_plan(text) == plan
    assert [level.concurrency for level in plan.load] == [1, 4]
    assert plan.arms.alternative is not None


def test_demo_arms_differ_only_where_the_demo_declares_it():
    """The candidate differs in speculation alone, the alternative in what it declares."""
    plan, _ = load_builtin_plan("demo")
    base = plan.arms.baseline.settings

    def differing(settings):
        return {key for key in base.keys() | settings.keys() if base.get(key) != settings.get(key)}

    assert plan.arms.alternative is not None
    assert differing(plan.arms.candidate.settings) <= set(plan.comparison.candidate_may_differ)
    assert differing(plan.arms.alternative.settings) == {"max_num_batched_tokens"}
    assert plan.comparison.alternative_may_differ == ("max_num_batched_tokens",)


def test_quick_demo_is_smaller_and_its_text_states_it():
    """The quick demo asks two prompts of each task, and its text is that smaller plan."""
    plan, text = load_builtin_plan("demo-quick")
    assert parse_plan(text) == plan
    assert plan.workload.items_per_segment == 2
    assert all(level.repeats == 1 for level in plan.load)


def test_unknown_builtin_plan_lists_the_known_ones():
    """A built-in plan that is not there is an error that lists those that are."""
    with pytest.raises(PlanError, match="use one of: demo"):
        load_builtin_plan("nope")


def test_builtin_name_is_a_path_to_load():
    """`builtin:demo` loads the demo's plan."""
    assert load_plan("builtin:demo") == load_builtin_plan("demo")


def test_rendered_plan_reads_back_equal_with_awkward_text():
    """Quotes, control characters and other scripts survive a rendering."""
    plan, _ = load_builtin_plan("demo")
    awkward = plan.model_copy(update={"question": 'a "b" \\ \n\t\x7f\x01 سؤال 问'})
    assert parse_plan(render_plan(awkward)) == awkward


def test_a_key_that_was_renamed_is_read_and_said(tmp_path):
    """A plan of an earlier release means what it meant; its file's reader hears the new name."""
    text = MINIMAL + "[limits]\nlead_max_s = 12\n"
    assert parse_plan(text).limits.ramp_up_max_s == 12
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.warns(FutureWarning, match=r"limits.lead_max_s is called limits.ramp_up_max_s now"):
        plan, kept = load_plan(path)
    assert (plan.limits.ramp_up_max_s, kept) == (12, text)


def test_a_renamed_key_beside_its_new_name_is_refused():
    """Nobody can tell which of two values is meant."""
    error = fault(MINIMAL + "[limits]\nlead_max_s = 12\nramp_up_max_s = 13\n")
    assert "limits.lead_max_s is the old name of limits.ramp_up_max_s" in str(error)
