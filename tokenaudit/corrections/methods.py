"""Which corrections to compute: presets with options as texts, and files that list methods."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tokenaudit.config.toml import dotted, parse_toml, shown
from tokenaudit.contracts.errors import ConfigError, Problem, TokenauditError, UsageError, nearest_hint, printable
from tokenaudit.contracts.files import read_bounded
from tokenaudit.corrections.arrays import Arrays
from tokenaudit.corrections.correction import Correction, Dtype
from tokenaudit.corrections.logprobs import BOTH
from tokenaudit.corrections.trainers import ALIASES, TRAINERS, correction_class

WELL_KNOWN: Mapping[str, str] = {
    "tis": "verl: rollout_is=token, rollout_is_threshold=2.0",
    "icepop": 'verl: rollout_is=token, rollout_is_threshold="0.5_5.0"',
    "mis": "slime-mis: tis_mode=mask, use_rs=false",
    "geometric-mask": "skyrl: sequence_mask_metric=geometric",
    "product-mask": "trl",
    "veto": "skyrl: outlier_token_is_threshold_low=1e-4, outlier_token_is_threshold_high=100",
    "k1": "verl: rollout_rs=token_k1, rollout_rs_threshold=0.5_2.0",
    "k2": "verl: rollout_rs=seq_mean_k2, rollout_rs_threshold=0.02",
    "k3": "verl: rollout_rs=seq_mean_k3, rollout_rs_threshold=0.01",
    "dppo": "prime-rl",
    "ipo": "prime-rl: type=ipo",
    "m2po": "areal: m2_threshold=0.04",
    "opsm": "slime: function=opsm",
}
"""One well-known setting of each kind, by the name that it is shown under."""

_MOST_BYTES = 2**20
_MOST_METHODS = 100
_OPTION = re.compile(r"\s*[A-Za-z_][\w.-]*\s*=")
_GROUPED_NUMBER = re.compile(r"[+-]?\d[\d_.]*_[\d_.]*\d")


@dataclass(frozen=True, slots=True)
class Method:
    """A correction under a name.

    Attributes:
        name: what tables and rules call it.
        correction: the trainer's options.
        dtype: the type to compute in.
        notes: what people should know about these options.
    """

    name: str
    correction: Correction
    dtype: Dtype
    notes: tuple[str, ...]

    @property
    def setting(self) -> str:
        """The preset and the options that were given, as `methods_of` reads them."""
        options = self.correction.model_dump(mode="json", exclude_unset=True)
        text = ", ".join(_written(options))
        return f"{self.correction.TRAINER}: {text}" if text else self.correction.TRAINER

    def why_not(self, columns: Collection[str], xp: Arrays) -> str | None:
        """Why it can't be run at all on a log with these columns, on a device; None: it can."""
        missing = [name for name in BOTH if name not in columns]
        if missing:
            return f"the log has no {' and no '.join(missing)}"
        return None if self.dtype in xp.dtypes else f"{xp.description} has no {self.dtype}"


def methods_of(specs: Sequence[str], file: Path | None = None, dtype: Dtype | None = None) -> list[Method]:
    """The methods that are asked for.

    Args:
        specs: each a preset, a preset with options (`verl: rollout_is=token, rollout_is_threshold=2.0`), or a name in
            `file` or in `WELL_KNOWN`; none: all of the file, else `WELL_KNOWN`.
        file: TOML or JSON with a list `method` of tables `name`, `trainer`, `options` and `dtype`.
        dtype: compute in this type, whatever the trainer or the file says.

    Raises:
        UsageError: unknown trainers, names and options, or wrong values; holds all of them.
    """
    in_file = {} if file is None else _in_file(file, dtype)
    found: list[Method] = []
    problems: list[Problem] = []
    for spec in dict.fromkeys(specs or in_file or WELL_KNOWN):
        try:
            found.append(in_file[spec] if spec in in_file else _of_spec(spec, dtype, in_file))
        except TokenauditError as error:
            problems += error.problems
    if len(found) > _MOST_METHODS:
        problems.append(Problem(f"{len(found)} methods", None, f"up to {_MOST_METHODS} are computed at a time"))
    if problems:
        raise UsageError(problems)
    return found


def _of_spec(spec: str, dtype: Dtype | None, in_file: Mapping[str, Method]) -> Method:
    trainer, _, text = WELL_KNOWN.get(spec, spec).partition(":")
    source = f"--method {spec}"
    options: dict[str, Any] = {}
    notes: list[str] = []
    problems: list[Problem] = []
    for part in _parts(text) if text.strip() else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            hint = "write PRESET: KEY=VALUE, KEY=VALUE"
            problems.append(Problem(f"{shown(part.strip())} is no KEY=VALUE", source, hint))
            continue
        parsed, note = _value(value.strip())
        notes += [f"{key.strip()}={note}"] if note else []
        _put(options, key.strip().replace("-", "_").split("."), parsed)
    if problems:
        raise UsageError(problems)
    return _method(spec.strip(), trainer.strip(), options, dtype, source, notes, in_file)


def _parts(text: str) -> Iterator[str]:
    """Options, cut at commas outside of quotes and brackets that another option follows."""
    depth, quote, begin = 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0 and _OPTION.match(text, at + 1):
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def _put(options: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *above, last = path
    for part in above:
        inner = options.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = options[part] = {}
        options = inner
    options[last] = value


def _value(text: str) -> tuple[Any, str]:
    """A value as the trainers' YAML would read it, and what is odd about that."""
    if text.lower() in ("null", "none", "~", ""):
        return None, ""
    if text.lower() in ("true", "false"):
        return text.lower() == "true", ""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text, ""
    if isinstance(value, int | float) and not isinstance(value, bool) and _GROUPED_NUMBER.fullmatch(text):
        low, _, high = text.partition("_")
        other = f'"{text}"' if re.fullmatch(r"[\d.]+", high) and low else text
        return value, f"{text} reads as {value!r} without quotes, in YAML too; write {other} for two bounds"
    return value, ""


def _written(options: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Options as `KEY=VALUE`, those of tables dotted."""
    for name, value in options.items():
        if isinstance(value, dict) and value:
            yield from _written(value, f"{above}{name}.")
        else:
            is_word = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w-]*", value) and _value(value)[0] == value
            yield f"{above}{name}={value if is_word else _toml(value)}"


def _toml(value: Any) -> str:
    """A value as TOML has it."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items() if inner is not None) + "}"
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def _method(
    name: str,
    trainer: str,
    options: Mapping[str, Any],
    dtype: Dtype | None,
    source: str,
    notes: Sequence[str] = (),
    others: Mapping[str, Method] | None = None,
) -> Method:
    preset = trainer.replace("_", "-")
    if ALIASES.get(preset, preset) not in TRAINERS:
        first, _, rest = trainer.partition(" ")
        if first in TRAINERS and "=" in rest:
            hint = f"write '{first}: {printable(rest.strip())}'"
        else:
            hint = nearest_hint(trainer, [*(others or ()), *TRAINERS, *WELL_KNOWN], "names")
        raise UsageError(Problem(f"there is no method {shown(trainer)}", source, hint))
    kind = correction_class(preset)
    try:
        correction = kind.model_validate(dict(options))
    except ValidationError as error:
        raise UsageError(list(_problems(error, kind, source))) from error
    return Method(name, correction, dtype or correction.DTYPE, (*notes, *correction.notes()))


def _problems(error: ValidationError, kind: type[BaseModel], source: str) -> Iterator[Problem]:
    """What is wrong with a table that a model refuses."""
    seen: set[str] = set()
    for fault in error.errors(include_url=False, include_context=False):
        path = tuple(str(part) for part in fault["loc"])
        place = f"{source}: {dotted(path)}" if path else source
        if fault["type"] == "extra_forbidden":
            hint = nearest_hint(path[-1], _fields_at(kind, path[:-1]), "options")
            yield Problem(f"there is no option {shown(path[-1])}", place, hint)
        elif not path or path[0] not in seen:
            # a value that fits none of several types is a fault for each
            seen.update(path[:1])
            said = fault["msg"].removeprefix("Value error, ")
            yield Problem(f"{dotted(path)} is {shown(fault['input'])}: {said}" if path else said, place)


def _fields_at(kind: type[Any], path: Sequence[str]) -> Iterator[str]:
    """The options of a model, or of the one that an option holds."""
    if not path:
        yield from getattr(kind, "model_fields", ())
        return
    field = getattr(kind, "model_fields", {}).get(path[0])
    for inner in _models_in(field.annotation) if field is not None else ():
        yield from _fields_at(inner, [part for part in path[1:] if not part.isdigit()])


def _models_in(annotation: Any) -> Iterator[type[Any]]:
    if hasattr(annotation, "model_fields"):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)


class _Entry(BaseModel):
    """A method in a file."""

    model_config = ConfigDict(extra="forbid")

    trainer: str
    name: str | None = None
    options: dict[str, Any] | None = None
    dtype: Dtype | None = None


def _in_file(path: Path, dtype: Dtype | None) -> dict[str, Method]:
    """The methods of a file by their names."""
    source = str(path)
    hint = "a list `method` of tables with `name`, `trainer`, `options` and `dtype`"
    try:
        content = read_bounded(path, _MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(Problem(f"can't read the methods: {error.strerror or error}", source, hint)) from error
    try:
        if len(content) > _MOST_BYTES:
            raise UsageError(Problem("a file of methods larger than 1 MiB", source, hint))
        is_json = path.suffix == ".json" or content.lstrip().startswith(b"{")
        data = json.loads(content) if is_json else parse_toml(content, source)
    except ConfigError as error:
        raise UsageError(error.problems) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(Problem(f"not JSON: {error}", source, hint)) from error
    listed = data.get("method") if isinstance(data, dict) else data
    if not isinstance(listed, list) or not listed:
        raise UsageError(Problem("there are no methods", source, hint))
    found: dict[str, Method] = {}
    problems: list[Problem] = []
    for number, table in enumerate(listed, 1):
        place = f"{source}: method {number}"
        try:
            entry = _Entry.model_validate(table)
            name = entry.name or entry.trainer
            if name in found:
                raise UsageError(
                    Problem(f"method {shown(name)} is there twice", place, "give each a `name` of its own")
                )
            found[name] = _method(name, entry.trainer, entry.options or {}, dtype or entry.dtype, place)
        except ValidationError as error:
            problems += _problems(error, _Entry, place)
        except TokenauditError as error:
            problems += error.problems
    if problems:
        raise UsageError(problems)
    return found
