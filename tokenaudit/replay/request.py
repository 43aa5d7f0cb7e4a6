"""What a run is asked to do: one value that a command line or a notebook hands to every session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tokenaudit.contracts.errors import KeywordError, Problem, TokenauditError, UsageError, nearest_hint, shown

if TYPE_CHECKING:
    from tokenaudit.log.cache import DigestCache

Paths = Iterable[Path | str] | Path | str
"""Files, folders or glob patterns that make up one log."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class TimelineKind(StrEnum):
    """Where refreshes and takes come from."""

    RECORDED = "recorded"
    """The log's own events, in order."""
    SIMULATED = "simulated"
    """For every step: refresh, the puts of that step, take."""


class PromptOrder(StrEnum):
    """How the groups of each task are ordered when a workload is derived from a log."""

    AUTO = "auto"
    """`START` where the log gives it for every group, else `FIRST_PUT`; a workload has one of the others."""
    START = "start"
    """As they began: `time_us` of a group's first put minus the longest `generate_time_us` of its rows; ties by id."""
    FIRST_PUT = "first-put"
    """As they were first put. Every log has this order, but groups that ended early move to the front."""
    GROUP_ID = "group-id"
    """By rising group id: the order in which groups began, where ids were counted up as prompts were drawn."""


class RunOptions(TypedDict, total=False):
    """The keywords of the functions that run a log, as the attributes of `RunRequest`; `config_path` is `config`.

    No function takes all of them: `TAKEN_BY`.
    """

    config: Path | str | Mapping[str, Any] | None
    config_path: Path | str | None
    overrides: str | Sequence[str] | Mapping[str, Any] | None
    isolated: bool
    working_dir: Path | str | None
    quarantine: bool
    timeline: TimelineKind | str | None
    with_groups: bool
    cache: DigestCache | Path | str | None
    simulate: bool
    steps: int | None
    max_concurrency: int | None
    token_time_us: int | None
    prompt_order: PromptOrder | str | None
    on_progress: Progress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What to run, and how.

    Attributes:
        paths: files, folders or glob patterns that make up one log, or one workload.
        config: a config file, or its contents as plain data; None: a file that is found, else the log's own config,
            else defaults.
        overrides: `key=value` texts laid over the config, the last one wins.
        isolated: look for no config file.
        working_dir: where relative config paths begin and a config file is looked for; None: the current folder.
        quarantine: leave out groups with structural faults instead of refusing the log.
        timeline: where refreshes and takes of a replay come from; None: the log if it has them.
        with_groups: keep the ids of taken and expired groups.
        cache: where digests are kept between runs; a folder or a cache.
        simulate: simulate the workload behind the log instead of replaying the log.
        steps: train steps of a simulation; None: those of the config, else of the log.
        max_concurrency: responses that a simulation generates at once, at least 1; None: any number.
        token_time_us: time per token of every response of a workload derived from a log, microseconds; None: derived
            from the log.
        prompt_order: the order of the prompts of such a workload; None: `PromptOrder.AUTO`.
        on_progress: called as the work goes on.
    """

    paths: tuple[Path, ...] = ()
    config: Path | Mapping[str, Any] | None = None
    overrides: tuple[str, ...] = ()
    isolated: bool = False
    working_dir: Path | None = None
    quarantine: bool = False
    timeline: TimelineKind | None = None
    with_groups: bool = False
    cache: DigestCache | Path | None = None
    simulate: bool = False
    steps: int | None = None
    max_concurrency: int | None = None
    token_time_us: int | None = None
    prompt_order: PromptOrder | None = None
    on_progress: Progress | None = None

    @staticmethod
    def of(paths: Paths | RunRequest, options: RunOptions, function: str = "") -> RunRequest:
        """The request behind the arguments of a function: a request as it is, or paths, changed by `options`.

        Raises:
            KeywordError: `function`, a name in `TAKEN_BY` or any function, takes no such option.
            UsageError: there is no such value of an option; either error holds every problem found.
            ConfigError: an override can't be written as `key=value`.
        """
        if isinstance(paths, RunRequest):
            return paths.changed(options, function)
        listed = [paths] if isinstance(paths, Path | str) else list(paths) if isinstance(paths, Iterable) else [paths]
        wrong = [path for path in listed if not isinstance(path, Path | str)]
        if wrong:
            raise UsageError(Problem(f"{shown(path)} is no path", None, "name files or folders") for path in wrong)
        if not listed:
            raise UsageError(Problem("no log is named", None, "name files or folders"))
        return RunRequest(paths=tuple(map(Path, listed))).changed(options, function)

    def changed(self, options: RunOptions, function: str = "") -> RunRequest:
        """The request with some of its options changed; errors as for `of`."""
        problems: list[Problem] = []
        values: dict[str, Any] = {}
        taken = TAKEN_BY.get(function, _OPTIONS)
        for name, value in options.items():
            try:
                if name in taken:
                    values |= _checked(name, value)
                else:
                    problems.append(_not_taken(name, function, taken))
            except TokenauditError as error:
                problems += error.problems
        if problems:
            raise (UsageError if options.keys() <= set(taken) else KeywordError)(problems)
        return replace(self, **values) if values else self

    def stage(self, label: str, total: int) -> Callable[[int], None] | None:
        """Reports one piece of the work, by how much of it is done; None where nobody listens."""
        on_progress = self.on_progress
        return None if on_progress is None else lambda done: on_progress(label, done, total)


def _checked(name: str, value: Any) -> dict[str, Any]:
    """An option by its name in the request."""
    problems = list(_faults(name, value))
    if problems:
        raise UsageError(problems)
    match name:
        case "config" | "config_path":
            return {"config": Path(value) if isinstance(value, str) else value}
        case "working_dir" | "cache":
            return {name: Path(value) if isinstance(value, str) else value}
        case "timeline" | "prompt_order" if value is not None:
            return {name: _CHOICES[name](value)}
        case "overrides":
            if isinstance(value, Mapping):
                from tokenaudit.config.toml import override_texts

                value = override_texts(value)
            return {name: (value,) if isinstance(value, str) else tuple(value or ())}
    return {name: value}


def _not_taken(name: str, function: str, taken: Sequence[str]) -> Problem:
    if name in _OPTIONS:
        return Problem(f"{function} takes no option {name!r}", None, f"options: {', '.join(taken)}")
    return Problem(f"there is no option {name!r}", None, nearest_hint(name, taken, "options"))


def _faults(name: str, value: Any) -> Iterator[Problem]:
    """What keeps a value from being that of an option."""
    allowed = ""
    if name in _CHOICES and value is not None and value not in list(_CHOICES[name]):
        allowed = nearest_hint(str(value), [choice.value for choice in _CHOICES[name]], "values")
    elif name in _COUNTS and value is not None and (isinstance(value, bool) or not _is_count(value)):
        allowed = "it is a whole number of 1 or more"
    elif name in _SWITCHES and not isinstance(value, bool):
        allowed = "it is True or False"
    elif name == "overrides" and value is not None and not _is_overrides(value):
        allowed = 'write "policy.max_staleness=2", a list of such texts, or {"policy.max_staleness": 2}'
    elif name == "config" and not isinstance(value, Path | str | Mapping | None):
        allowed = "it is a file, or the contents of one as a dict"
    elif name in ("config_path", "working_dir") and not isinstance(value, Path | str | None):
        allowed = "it is a path"
    elif name == "cache" and not (isinstance(value, Path | str | None) or hasattr(value, "read_digest")):
        allowed = "it is a folder, or a DigestCache"
    elif name == "on_progress" and value is not None and not callable(value):
        allowed = "it is a function of a label, what is done and what there is"
    if allowed:
        yield Problem(f"{name} is {shown(value)}", None, allowed)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def _is_overrides(value: Any) -> bool:
    if isinstance(value, str | Mapping):
        return True
    return isinstance(value, Iterable) and all(isinstance(text, str) for text in value)


_CHOICES: dict[str, type[StrEnum]] = {"timeline": TimelineKind, "prompt_order": PromptOrder}
_COUNTS = ("steps", "max_concurrency", "token_time_us")
_SWITCHES = ("isolated", "quarantine", "with_groups", "simulate")
_OPTIONS = [*(field.name for field in fields(RunRequest) if field.name != "paths"), "config_path"]
_SETTINGS = ("config", "config_path", "overrides", "isolated", "working_dir", "on_progress")
_WORKLOADS = ("steps", "max_concurrency", "token_time_us", "prompt_order", "quarantine")
TAKEN_BY: dict[str, tuple[str, ...]] = {
    "replay_log": (*_SETTINGS, "timeline", "with_groups", "quarantine", "cache"),
    "LoadedLog.replay": (*_SETTINGS, "timeline", "with_groups"),
    "inspect_log": ("cache", "on_progress"),
    "correct_log": (*_SETTINGS, "timeline", "quarantine", "cache"),
    "gate_log": (*_SETTINGS, "timeline", "quarantine", "cache"),
    "gate_log(simulate=True)": (*_SETTINGS, *_WORKLOADS),
    "audit_log": (*_SETTINGS, "rules", "epsilon"),
    "explain_log": (*_SETTINGS, "quarantine", "cache", "token_time_us", "prompt_order"),
    "simulate_workload": (*_SETTINGS, *_WORKLOADS, "with_groups", "event_log"),
}
"""The keywords of each function that takes options, those of its own included; others would change nothing."""
