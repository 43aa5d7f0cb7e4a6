"""Find, read and merge what sets a config: a file, the log's own metadata and `-s key=value`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tokenaudit.config.model import Config, dotted_items, leaves, parse_config
from tokenaudit.config.toml import (
    OVERRIDE,
    dotted,
    override_data,
    override_source,
    parse_toml,
    read_start,
    read_toml,
    shown,
)
from tokenaudit.contracts.errors import ConfigError, Problem, nearest_hint
from tokenaudit.contracts.files import CONFIG_FILE, from_folder

DEFAULT, LOG_METADATA = "default", "log metadata"
"""Origins of a value; any other origin is the name of a config file."""

_PYPROJECT = "pyproject.toml"
_GIVEN_DATA = "config"
"""What messages call a config that is given as plain data."""


class FoundBy(StrEnum):
    """Why the config file in use is the one in use."""

    GIVEN = "given"
    """Named on the command line."""
    BESIDE_LOG = "beside the log"
    """tokenaudit.toml in the log's folder."""
    WORKING_FOLDER = "working folder"
    """tokenaudit.toml in the working folder."""
    PYPROJECT = "pyproject"
    """[tool.tokenaudit] of the nearest pyproject.toml that has it, from the working folder upwards."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The config of a run and where it came from.

    Attributes:
        config: the merged, valid config.
        origins: for every key of `dotted_items`: "default", "log metadata", "-s", or the config file's name.
        source: the base of the config, as messages call it; a file as the user would name it.
        file: the config file in use, None without one. It may set [gate] and [cost] only, over the log's metadata.
        found_by: how `file` came to be used; None without one.
        overridden_tasks: tasks that nothing but `-s` names.
        on_defaults: whether a config was looked for, and none was found that sets more than [gate] and [cost].
    """

    config: Config
    origins: dict[str, str]
    source: str
    file: Path | None = None
    found_by: FoundBy | None = None
    overridden_tasks: tuple[str, ...] = ()
    on_defaults: bool = False

    def __repr__(self) -> str:
        named = [key for key, origin in self.origins.items() if origin != DEFAULT]
        return f"Settings({self.source}: {len(named)} of {len(self.origins)} values set)"


def load_settings(
    *,
    config_path: Path | None = None,
    config: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    log_dir: Path | None = None,
    working_dir: Path,
    isolated: bool = False,
    log_config: str | Mapping[str, Any] | None = None,
) -> Settings:
    """The config of a run: `-s` over the config file over the log's metadata over the defaults.

    A file that sets more than [gate] and [cost] replaces the log's config as a whole; so does a file that was named.

    Args:
        config_path: the file named with `-c`; relative to `working_dir`.
        config: the contents of a config as plain data, in place of a file.
        overrides: `key=value` texts: a dotted TOML key, a TOML value or a bare word. The last one wins.
        log_dir: where to look for a file beside the log; relative to `working_dir`.
        working_dir: where else to look for a file.
        isolated: look for no file; `config_path` and the log's metadata still count.
        log_config: the log's own config, as JSON text or parsed; ignored unread when a file replaces it.

    Raises:
        ConfigError: holds the faults of all sources together.
    """
    file: _File | None = None
    layers: list[_Layer] = []
    problems: list[Problem] = []
    try:
        if config is not None:
            layers.append(_Layer(_GIVEN_DATA, _GIVEN_DATA, dict(config)))
        else:
            file = _find_file(config_path, log_dir, working_dir, isolated)
            layers += _base_layers(file, log_config)
    except ConfigError as error:
        problems += error.problems
    for text in overrides:
        try:
            layers.append(_Layer(OVERRIDE, override_source(text), override_data(text)))
        except ConfigError as error:
            problems += error.problems
    problems += [problem for layer in layers for problem in layer.problems()]
    if problems:
        raise ConfigError(problems)
    is_meant = isolated or config is not None or config_path is not None
    is_found = any(layer.decides_a_run for layer in layers)
    return replace(_merged(layers, file), on_defaults=not is_meant and not is_found)


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one source sets. No rule of a config spans two keys, so each layer is judged alone."""

    origin: str
    source: str
    data: dict[str, Any]

    @property
    def decides_a_run(self) -> bool:
        """Whether it is a config of a run, which `-s`, [gate] and [cost] alone aren't."""
        return self.origin != OVERRIDE and bool(self.data.keys() - {"gate", "cost"})

    def problems(self) -> Iterator[Problem]:
        """What is wrong with it."""
        try:
            parse_config(self.data, self.source)
        except ConfigError as error:
            yield from map(self._told, error.problems)

    def _told(self, problem: Problem) -> Problem:
        if self.origin == OVERRIDE:
            # The text of the option shows the key already.
            return replace(problem, where=self.source)
        if self.origin == LOG_METADATA:
            return replace(problem, hint="; ".join(filter(None, (problem.hint, _REPLACES_METADATA))))
        return problem


@dataclass(frozen=True, slots=True)
class _File:
    """A config file that was read."""

    path: Path
    found_by: FoundBy
    layer: _Layer

    @property
    def replaces_metadata(self) -> bool:
        """Whether the log's own config no longer counts."""
        return self.found_by is FoundBy.GIVEN or self.layer.decides_a_run


_REPLACES_METADATA = "-c FILE replaces the log's own config"


def _base_layers(file: _File | None, log_config: str | Mapping[str, Any] | None) -> list[_Layer]:
    layers = []
    if log_config is not None and not (file and file.replaces_metadata):
        layers.append(_metadata_layer(log_config))
    if file is not None:
        layers.append(file.layer)
    return layers


def _merged(layers: Sequence[_Layer], file: _File | None) -> Settings:
    data: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        _lay_over(data, layer.data)
        origins |= {dotted(path): layer.origin for path, _ in leaves(layer.data)}
    base = next((layer.source for layer in layers if layer.origin != OVERRIDE), "defaults")
    config = parse_config(data, base)
    return Settings(
        config,
        {key: origins.get(key, DEFAULT) for key in dotted_items(config)},
        base,
        file.path if file else None,
        file.found_by if file else None,
        _overridden_tasks(layers),
    )


def _overridden_tasks(layers: Sequence[_Layer]) -> tuple[str, ...]:
    is_named_below = {name: False for layer in layers for name in layer.data.get("tasks", {})}
    for layer in layers:
        if layer.origin != OVERRIDE:
            is_named_below |= dict.fromkeys(layer.data.get("tasks", {}), True)
    return tuple(name for name, is_named in is_named_below.items() if not is_named)


def check_overridden_tasks(settings: Settings, tasks: Sequence[str], where: str) -> None:
    """Refuse an override for a task that isn't there: it changes nothing, and is most likely a slip of the pen.

    A task that a config file or the log's own config names is no such case: one config may serve many logs.

    Args:
        settings: the settings.
        tasks: the tasks of what is replayed or simulated.
        where: its name, for messages.

    Raises:
        ConfigError: an override names such a task; holds all of them.
    """
    problems = [
        Problem(f"{OVERRIDE} {dotted(('tasks', name))}: there is no task {name!r}", where, _tasks_hint(name, tasks))
        for name in settings.overridden_tasks
        if name not in tasks
    ]
    if problems:
        raise ConfigError(problems)


def _tasks_hint(name: str, tasks: Sequence[str]) -> str:
    hint, listed = nearest_hint(name, tasks, "tasks"), nearest_hint("", tasks, "tasks")
    return hint if hint == listed else f"{hint} {listed}"


def _lay_over(data: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Put a layer's values into nested tables, keeping what it doesn't name."""
    for name, value in layer.items():
        if isinstance(value, Mapping):
            _lay_over(data.setdefault(name, {}), value)
        else:
            data[name] = value


def _metadata_layer(log_config: str | Mapping[str, Any]) -> _Layer:
    """The log's own config, from JSON text or parsed."""
    source = "log metadata tokenaudit.config"

    def fault(what: str) -> ConfigError:
        return ConfigError(Problem(what, source, _REPLACES_METADATA))

    try:
        data: Any = json.loads(log_config) if isinstance(log_config, str) else log_config
        # JSON can spell half of a surrogate pair, which no output can hold.
        json.dumps(data, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise fault("the config in the log's metadata holds text that is not Unicode") from error
    except (ValueError, RecursionError) as error:
        raise fault(f"the config in the log's metadata is not JSON: {error}") from error
    if not isinstance(data, Mapping):
        raise fault(f"the config in the log's metadata is {shown(data)}; it must be a JSON object")
    return _Layer(LOG_METADATA, source, dict(data))


def _is_there(path: Path) -> bool:
    """Whether the name is taken; what isn't a readable file is reported when it is read, not passed over."""
    try:
        return path.exists() or path.is_symlink()
    except OSError:
        return False


def _find_file(config_path: Path | None, log_dir: Path | None, working_dir: Path, isolated: bool) -> _File | None:
    """The config file to use, read; None if there is none."""
    if config_path is not None:
        return _read_given(config_path, working_dir)
    if isolated:
        return None
    places = {FoundBy.WORKING_FOLDER: working_dir / CONFIG_FILE}
    if log_dir is not None:
        places = {FoundBy.BESIDE_LOG: working_dir / log_dir / CONFIG_FILE} | places
    for found_by, path in places.items():
        if _is_there(path):
            source = str(from_folder(path, working_dir))
            return _File(path, found_by, _Layer(path.name, source, read_toml(path, source)))
    folder = working_dir.absolute()
    for path in (parent / _PYPROJECT for parent in (folder, *folder.parents)):
        if _is_there(path):
            table = _find_table(path, str(from_folder(path, working_dir)))
            if table is not None:
                return _File(path, FoundBy.PYPROJECT, table)
    return None


def _read_given(config_path: Path, working_dir: Path) -> _File:
    path, source = working_dir / config_path, str(config_path)
    data = read_toml(path, source)
    if path.name != _PYPROJECT:
        return _File(path, FoundBy.GIVEN, _Layer(path.name, source, data))
    layer = _tool_layer(data, source)
    if layer is None:
        raise ConfigError(Problem("there is no [tool.tokenaudit] in it", source, "add it, or name another file"))
    return _File(path, FoundBy.GIVEN, layer)


def _find_table(path: Path, source: str) -> _Layer | None:
    """[tool.tokenaudit] of a pyproject.toml; None if it has none."""
    try:
        content = read_start(path)
    except OSError:
        return None
    try:
        data = parse_toml(content, source)
    except ConfigError:
        # Someone else's broken file is passed over; one that may hold the table must not be silently ignored.
        if b"tokenaudit" in content:
            raise
        return None
    return _tool_layer(data, source)


def _tool_layer(data: Mapping[str, Any], source: str) -> _Layer | None:
    tool = data.get("tool")
    if not isinstance(tool, Mapping) or "tokenaudit" not in tool:
        return None
    table = tool["tokenaudit"]
    if not isinstance(table, dict):
        raise ConfigError(Problem(f"tool.tokenaudit is {shown(table)}; it must be a section", source))
    return _Layer(_PYPROJECT, f"{source} [tool.tokenaudit]", table)
