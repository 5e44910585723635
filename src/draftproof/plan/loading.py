"""Reading a plan: TOML text to a checked Plan, its hashes, and a plan back to text.

Owns the file read and what a plan's text means (relative paths, nested settings). The schema owns ranges.
"""

import hashlib
import json
import re
import tomllib
import warnings
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import ValidationError

from draftproof.core.errors import PlanError
from draftproof.plan.faults import describe_faults
from draftproof.plan.schema import Arm, Plan
from draftproof.plan.sharing import share_engine

BUILTIN_PREFIX = "builtin:"
_BUILTIN_NAMES = ("demo", "demo-quick")
# Deciding keys that came after the first plans: (table, key).
LATER_KEYS = (
    ("thresholds", "tail_quantile"),
    ("thresholds", "tail_margin"),
    ("thresholds", "token_limit_margin"),
    ("comparison", "cluster_by"),
    ("comparison", "quality"),
    ("comparison", "forced_by_method"),
    ("comparison", "unequal_budgets"),
)
# Keys that have another name now: (table, old) -> new. Plans of earlier releases and their runs keep loading.
RENAMED_KEYS = {("knee", "looks"): "trials", ("limits", "lead_max_s"): "ramp_up_max_s"}
_DRAFTER_SETTING = "drafter"
_BARE_KEY = re.compile(r"^[A-Za-z0-9_-]+$")
_TOML_POSITION = re.compile(
    r"^(?P<what>.*) \(at (?:line (?P<line>\d+), column \d+|(?P<end>end of document))\)$"
)


def load_plan(path: Path | str) -> tuple[Plan, str]:
    """Return a checked plan and the text that states it.

    Relative paths of the plan (workload, local model, drafter) are taken from the plan's own folder; those
    inside `command` and `env` are the launched program's and stay as they are. The text is that of the file,
    byte for byte, unless it has a path to resolve: then it is written anew with absolute ones, so that it
    means the same wherever a run keeps it. `path`: a TOML file, or "builtin:demo". Raises PlanError: no such
    file, not TOML (with the line), an unknown key or a value out of range.

    Warns (FutureWarning) of a key that has another name now.
    """
    if str(path).startswith(BUILTIN_PREFIX):
        return load_builtin_plan(str(path).removeprefix(BUILTIN_PREFIX))
    path = Path(path)
    text = _read_text(path)
    written = parse_plan(text, source=str(path))
    for table, old in _rename_keys(_parse_toml(text, str(path)), str(path)):
        new = RENAMED_KEYS[table, old]
        warnings.warn(f"{path}: {table}.{old} is called {table}.{new} now.", FutureWarning, stacklevel=2)
    plan = _resolve_paths(written, path.parent)
    return plan, text if plan == written else render_plan(plan)


def load_builtin_plan(name: str) -> tuple[Plan, str]:
    """Return a plan that ships with the package, and its text.

    "demo" is the demo's plan. "demo-quick" is the same with two prompts of each task and one repeat: it shows
    the path and is too little for a verdict. Raises PlanError: no plan of that name.
    """
    if name not in _BUILTIN_NAMES:
        raise PlanError(
            f"there is no built-in plan {name!r}.", fix=f"use one of: {', '.join(_BUILTIN_NAMES)}."
        )
    text = (resources.files("draftproof") / "data" / "plans" / "demo.toml").read_text(encoding="utf-8")
    plan = parse_plan(text, source=f"{BUILTIN_PREFIX}demo")
    if name == "demo":
        return plan, text
    workload = plan.workload.model_copy(update={"items_per_segment": 2, "max_tokens": 24})
    load = tuple(level.model_copy(update={"repeats": 1, "block_size": None}) for level in plan.load)
    changes = {"name": f"{plan.name}-quick", "workload": workload, "load": load, "sequential": None}
    plan = plan.model_copy(update=changes)
    return plan, render_plan(plan)


def parse_plan(text: str, source: str = "plan") -> Plan:
    """Return the plan that a TOML text states; paths stay as written.

    Raises PlanError: not TOML (with the line), an unknown key or a value out of range.
    """
    values = _parse_toml(text, source)
    _flatten_settings(values)
    _rename_keys(values, source)
    share_engine(values)
    try:
        plan = Plan.model_validate(values)
    except ValidationError as error:
        raise describe_faults(error, values, source) from None
    return plan.model_copy(update={"engine": None})  # every arm has what it says


def _rename_keys(values: dict[str, Any], source: str) -> list[tuple[str, str]]:
    """Give keys that were renamed their new names in place; return which there were."""
    found = []
    for (table, old), new in RENAMED_KEYS.items():
        part = values.get(table)
        if not isinstance(part, dict) or old not in part:
            continue
        if new in part:
            raise PlanError(
                f"{table}.{old} is the old name of {table}.{new}.", place=source, fix=f"remove {old}."
            )
        part[new] = part.pop(old)
        found.append((table, old))
    return found


def plan_sha256(text: str) -> str:
    """Return the SHA-256 of the plan's text, the same as that of the file `plan.toml` of a run."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def thresholds_sha256(plan: Plan) -> str:
    """Return the SHA-256 of what decides the verdict: thresholds, comparison and objectives.

    Taken over JSON with sorted keys and every default filled in, so that comments and order do not matter. A
    key of `LATER_KEYS` counts only where the plan departs from its default: the hash of a run made before the
    key existed stays what that run wrote down.
    """
    deciding = plan.model_dump(mode="json", include={"thresholds", "comparison", "objectives"})
    for table, key in LATER_KEYS:
        part, model = deciding[table], getattr(plan, table)
        if getattr(model, key) == type(model).model_fields[key].get_default():
            del part[key]
    return hashlib.sha256(msgspec.json.encode(deciding, order="sorted")).hexdigest()


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise PlanError("there is no such file.", place=str(path), fix="check the plan's path.") from None
    except UnicodeDecodeError as error:
        raise PlanError(
            f"the plan is not UTF-8 text (byte {error.start}).", place=str(path), fix="save it as UTF-8."
        ) from None
    except OSError as error:
        raise PlanError(f"the plan cannot be read ({error.strerror}).", place=str(path)) from None


def _parse_toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _TOML_POSITION.match(str(error))
        what = found["what"] if found else str(error)
        line = (found["line"] or str(text.count("\n") + 1)) if found else None
        raise PlanError(
            f"not valid TOML: {what[:1].lower()}{what[1:]}.",
            place=f"{source}:{line}" if line else source,
            fix="correct this line.",
        ) from None
    except RecursionError:
        raise PlanError("the TOML is nested too deeply.", place=source, fix="flatten it.") from None


def _flatten_settings(values: dict[str, Any]) -> None:
    """Write nested tables under `settings` as dotted keys: both spellings mean the same in a plan."""
    arms = values.get("arms")
    for arm in (*(arms.values() if isinstance(arms, dict) else ()), values.get("engine")):
        if isinstance(arm, dict) and isinstance(arm.get("settings"), dict):
            arm["settings"] = _flatten(arm["settings"])


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _resolve_paths(plan: Plan, folder: Path) -> Plan:
    workload, target = plan.workload, plan.target
    if not workload.path.startswith(BUILTIN_PREFIX):
        workload = workload.model_copy(update={"path": _absolute(workload.path, folder)})
    if _is_path(target.model, folder):
        target = target.model_copy(update={"model": _absolute(target.model, folder)})
    if target.tokenizer is not None:
        target = target.model_copy(update={"tokenizer": _absolute(target.tokenizer, folder)})
    arms = plan.arms.model_copy(
        update={name: _resolve_arm(arm, folder) for name, arm in plan.arms if isinstance(arm, Arm)}
    )
    return plan.model_copy(update={"workload": workload, "target": target, "arms": arms})


def _is_path(name: str, folder: Path) -> bool:
    """A name such as "org/name" may be an id: it is a path only where one is there or the text says so."""
    return name.startswith((".", "~")) or (folder / name).exists()


def _resolve_arm(arm: Arm, folder: Path) -> Arm:
    changes: dict[str, Any] = {}
    if "path" in arm.drafter:
        changes["drafter"] = arm.drafter | {"path": _absolute(arm.drafter["path"], folder)}
    # A service that is attached to states its drafter in its own words, which a plan repeats.
    is_launched = arm.engine == "reference" and arm.url is None and arm.command is None
    drafter = arm.settings.get(_DRAFTER_SETTING)
    if is_launched and isinstance(drafter, str) and _is_path(drafter, folder):
        changes["settings"] = arm.settings | {_DRAFTER_SETTING: _absolute(drafter, folder)}
    return arm.model_copy(update=changes) if changes else arm


def _absolute(path: str, folder: Path) -> str:
    """Return a path as seen from a folder; one that begins in the environment stays as it is written.

    Links are not followed: what opens a model may read its further files by the name of the first.
    """
    if path.startswith("${"):
        return path
    return str(folder.absolute() / Path(path).expanduser())


def render_plan(plan: Plan, *, defaults: Literal["written", "marked", "left_out"] = "written") -> str:
    """Return a TOML text that reads back as an equal plan; values of none are left out.

    `defaults`: whether a value that is the key's default is written, written with a remark, or left out.
    """
    values = plan.model_dump(mode="json", exclude_none=True)
    stated = plan.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    shown = stated if defaults == "left_out" else values
    lines = _render_table(shown, (), stated if defaults == "marked" else shown)
    return "\n".join(lines).lstrip("\n") + "\n"


def _render_table(table: dict[str, Any], path: tuple[str, ...], stated: Any) -> Iterator[str]:
    """Yield plain values first: after a sub-table's header they would belong to the sub-table.

    `stated`: the part of the table that departs from the defaults; what is not in it is marked.
    """
    nested = {key: value for key, value in table.items() if _is_nested(value)}
    known = stated if isinstance(stated, dict) else {}
    for key, value in table.items():
        if key not in nested:
            mark = "" if key in known else "  # default"
            yield f"{_render_key(key)} = {_render_value(value)}{mark}"
    for key, value in nested.items():
        here = (*path, key)
        name = ".".join(map(_render_key, here))
        own = known.get(key, {})
        entries = value if isinstance(value, list) else (value,)
        for entry, part in zip(entries, own if isinstance(own, list) else [own] * len(entries), strict=True):
            yield f"\n[[{name}]]" if isinstance(value, list) else f"\n[{name}]"
            yield from _render_table(entry, here, part)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict) for v in value))


def _render_key(key: str) -> str:
    return key if _BARE_KEY.match(key) else render_string(key)


def _render_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return render_string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_render_value, value))}]"
    return repr(value)


def render_string(text: str) -> str:
    """Return a TOML basic string: JSON's escapes are a subset of TOML's but for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
