"""Which corrections to compute: presets with options as texts, and files that list methods."""

from __future__ import annotations

import json
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
from tokenaudit.corrections.option_texts import parts_of_text, put, value_of_text, written
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
_MOST_METHODS = 300
_MOST_CHARACTERS = 300
_SAID = dict.fromkeys(("model_type", "dict_type"), "a table is wanted") | {"tuple_type": "a list is wanted"}
"""What is said of values of a wrong type, where pydantic speaks of Python."""


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
        text = ", ".join(written(options))
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
    for spec in dict.fromkeys(map(name_of, specs or in_file or WELL_KNOWN)):
        try:
            found.append(in_file[spec] if spec in in_file else _of_spec(spec, dtype, in_file))
        except TokenauditError as error:
            problems += error.problems
    if len(found) > _MOST_METHODS:
        problems.append(Problem(f"{len(found)} methods", None, f"up to {_MOST_METHODS} are computed at a time"))
    if problems:
        raise UsageError(problems)
    return found


def name_of(spec: str) -> str:
    """What a method is called that is asked for by a text: the text in one line, printable."""
    return printable(" ".join(spec.split()))


def _of_spec(spec: str, dtype: Dtype | None, in_file: Mapping[str, Method]) -> Method:
    trainer, _, text = WELL_KNOWN.get(spec, spec).partition(":")
    source = f"--method {_short(spec)}"
    options: dict[str, Any] = {}
    notes: list[str] = []
    problems: list[Problem] = []
    for part in parts_of_text(text) if text.strip() else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            hint = "write PRESET: KEY=VALUE, KEY=VALUE"
            problems.append(Problem(f"{shown(part.strip())} is no KEY=VALUE", source, hint))
            continue
        parsed, note = value_of_text(value.strip())
        notes += [f"{key.strip()}={note}"] if note else []
        if not put(options, key.strip().replace("-", "_").split("."), parsed):
            problems.append(Problem(f"{shown(key.strip())} is there twice", source, "leave one of them out"))
    if problems:
        raise UsageError(problems)
    return _method(spec, trainer.strip(), options, dtype, source, notes, in_file)


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
    odd = list(_no_numbers(options, correction.model_dump(), source))
    if odd:
        raise UsageError(odd)
    return Method(name, correction, dtype or correction.DTYPE, (*notes, *correction.notes()))


def _no_numbers(given: Any, taken: Any, place: str) -> Iterator[Problem]:
    """Values of which a number was made that aren't any."""
    match taken:
        case dict():
            for name, value in taken.items():
                yield from _no_numbers(given.get(name) if isinstance(given, dict) else None, value, f"{place}: {name}")
        case list() | tuple():
            of_each = given if isinstance(given, list) and len(given) == len(taken) else [None] * len(taken)
            for value, part in zip(of_each, taken, strict=True):
                yield from _no_numbers(value, part, place)
        case float() if taken != taken or isinstance(given, bool):
            yield Problem(f"{shown(given)} is no number", place, "take null, or leave it out, for none")


def _problems(error: ValidationError, kind: type[BaseModel], source: str) -> Iterator[Problem]:
    """What is wrong with a table that a model refuses."""
    seen: set[str] = set()
    for fault in error.errors(include_url=False, include_context=False):
        path = tuple(str(part) for part in fault["loc"])
        place = f"{source}: {dotted(path)}" if path else source
        if fault["type"] == "extra_forbidden":
            hint = nearest_hint(path[-1], _fields_at(kind, path[:-1]), "options")
            yield Problem(f"there is no option {shown(path[-1])}", place, hint)
        elif fault["type"] == "missing":
            yield Problem(f"{dotted(path)} is missing", place)
        elif not path or path[0] not in seen:
            # a value that fits none of several types is a fault for each
            seen.update(path[:1])
            said = _SAID.get(fault["type"]) or _short(fault["msg"].removeprefix("Value error, "))
            yield Problem(f"{dotted(path)} is {shown(fault['input'])}: {said}" if path else said, place)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


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


def _table(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON.

    Raises:
        ValueError: a key is there twice.
    """
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"{shown(name)} is there twice in a table")
        table[name] = value
    return table


def _with_null(value: Any) -> Any:
    """Options of TOML, which has no null: the text "null" stands for it."""
    match value:
        case dict():
            return {name: _with_null(part) for name, part in value.items()}
        case list():
            return [_with_null(part) for part in value]
    return None if value == "null" else value


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
        data = json.loads(content, object_pairs_hook=_table) if is_json else parse_toml(content, source)
    except ConfigError as error:
        raise UsageError(error.problems) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(Problem(f"not JSON: {error}", source, hint)) from error
    listed = data.get("method") if isinstance(data, dict) else data
    if not isinstance(listed, list) or not listed:
        raise UsageError(Problem("there are no methods", source, hint))
    if len(listed) > _MOST_METHODS:
        raise UsageError(Problem(f"{len(listed)} methods", source, f"up to {_MOST_METHODS} can be in a file"))
    found: dict[str, Method] = {}
    problems: list[Problem] = []
    for number, table in enumerate(listed, 1):
        place = f"{source}: method {number}"
        try:
            entry = _Entry.model_validate(table)
            name = entry.name or entry.trainer
            if name != name_of(name) or len(name) > _MOST_CHARACTERS:
                what = f"the name {shown(name)} can't stand in a table"
                raise UsageError(
                    Problem(what, place, f"take up to {_MOST_CHARACTERS} printable characters in one line")
                )
            if name in found:
                raise UsageError(
                    Problem(f"method {shown(name)} is there twice", place, "give each a `name` of its own")
                )
            options = (entry.options or {}) if is_json else _with_null(entry.options or {})
            found[name] = _method(name, entry.trainer, options, dtype or entry.dtype, place)
        except ValidationError as error:
            problems += _problems(error, _Entry, place)
        except TokenauditError as error:
            problems += error.problems
    if problems:
        raise UsageError(problems)
    return found
