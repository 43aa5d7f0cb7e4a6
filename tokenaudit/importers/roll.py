"""ROLL: `rollout_dump_data.step_<N>.jsonl` (rollout_dump_dir), an object of columns per step, a response a place in it.

RLVR pipelines write texts, scores and the domain, each of which has a buffer of its own; agentic ones write what their
environments say of a trajectory, native ones also its versions. Neither holds masks, token counts or what was dropped.
Read: `write_to_json_process` and `dump_rollout_to_specific_path` (roll/pipeline/rlvr/utils.py),
`dump_rollout_trajectories` (roll/pipeline/agentic/utils.py) and `formulate_rollouts` of `AgentNativeStepEnvManager` and
`ProxyEnvManager` (roll/pipeline/agentic/env_manager) of alibaba/ROLL 8eb27cc2; of 03b6314f, `rollout_data.jsonl`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenaudit.contracts.errors import shown
from tokenaudit.importers.base import Context, FieldFault, Imported, Importer, Lack, Precision
from tokenaudit.importers.batch import GroupKey, PromptGroups, TrainedResponse, trained_batches, unversioned_row
from tokenaudit.importers.fields import integer, mapping, number, stable_id, version_columns
from tokenaudit.importers.files import SourceRecord, json_records
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import Row

_COLUMNS = ("global_step", "id", "prompt", "domain", "scores", "trajectory_data")
_TRAJECTORY = re.compile(
    r"(?P<task>.*)_(?P<group>-?\d+_-?\d+_-?\d+)_\d+_\d{8}_\d{6}_\d{6}(?P<branch>_b\d+)?", re.ASCII | re.DOTALL
)
"""How a proxy calls a trajectory: tag, group, episode and seed, environment, time, and its branch if it has several."""
_VERSIONS = re.compile(r".*_(-?\d+)_(-?\d+)(?:_-?\d+){4}_\d{8}_\d{6}_\d{6}", re.ASCII | re.DOTALL)
"""How a native environment calls one: tag, version when the first and the last call ended, and what names the group."""
_EVALUATION = (
    "trajectories of evaluations are left out; ROLL writes them to the file of the step, so those that the step "
    "trained on may be lost"
)


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    prompts, rollout_ids = PromptGroups(is_reordered=True), itertools.count()

    def response(data: dict[str, Any]) -> TrainedResponse | None:
        # steps count from 0
        step = integer(data, "global_step") + 1
        if "trajectory_data" in data:
            return _trajectory(step, data["trajectory_data"], context)
        task_name = context.task(data.get("domain"))
        group = GroupKey(task_name, _group_id(task_name, data, prompts, context))
        context.limit_of(Precision.NONE)
        row = unversioned_row(next(rollout_ids), number(data.get("scores"), "scores"))
        return TrainedResponse(step, group, row)

    for data, where in (record for path in files for record in json_records(path, context)):
        with context.noting(where):
            # each object is one writing of a step, also where a resumed run appended the same step
            yield from trained_batches(_responses(_columns(data), where), response, where, context)
            prompts.end(context)


def _responses(columns: dict[str, list[Any]], where: str) -> Iterator[SourceRecord]:
    """The responses of an object of columns."""
    for index, values in enumerate(zip(*columns.values(), strict=True)):
        yield SourceRecord(dict(zip(columns, values, strict=True)), f"{where}, response {index}")


def _columns(data: dict[str, Any]) -> dict[str, list[Any]]:
    """The columns that are read. Raises a `FieldFault` for one that is no list, or not as long as the others."""
    columns: dict[str, list[Any]] = {}
    for name in (name for name in _COLUMNS if name in data):
        values = data.get(name)
        if not isinstance(values, list):
            raise FieldFault(f"{name} is {shown(values)}", "it is a list with a value for each response")
        columns[name] = values
    if "global_step" not in columns:
        raise FieldFault("global_step is missing")
    count = len(columns["global_step"])
    for name, values in columns.items():
        if len(values) != count:
            raise FieldFault(f"{len(values)} values of {name} for {count} responses")
    return columns


def _group_id(task_name: str, data: dict[str, Any], prompts: PromptGroups, context: Context) -> int:
    """Responses of a step to one prompt of the data set, by its id; else to equal prompts."""
    if data.get("id") is not None:
        return prompts.group_of((task_name, "id", data["id"]))
    if data.get("prompt") is None:
        raise FieldFault("neither id nor prompt", "responses to one prompt are a group")
    context.limit(Lack.PROMPTS)
    return prompts.group_of((task_name, "prompt", data["prompt"]))


def _trajectory(step: int, text: object, context: Context) -> TrainedResponse | None:
    """A trajectory of an environment, or one of its branches, which are parts of one rollout."""
    try:
        data = mapping(json.loads(text) if isinstance(text, str) else text, "trajectory_data")
    except (ValueError, RecursionError) as error:
        raise FieldFault(f"trajectory_data is no JSON: {error}"[:200]) from error
    env, name = mapping(data.get("env_info"), "env_info"), data.get("trajectory_id")
    if env.get("mode", "train") != "train":
        context.limit(_EVALUATION)
        return None
    if not isinstance(name, str):
        raise FieldFault(f"trajectory_id is {shown(name)}", "it is a text")
    rollout, task_name = name, env.get("tag")
    # a group is one environment of one tag in one episode, seeded alike
    group = "_".join(str(integer(env, part)) for part in ("group_id", "episode_id", "seed")) if env else ""
    if not env:
        match = _TRAJECTORY.fullmatch(name)
        if match is None:
            raise FieldFault(f"trajectory_id {shown(name)} names no group", "it is <tag>_<group>_<episode>_<seed>_…")
        rollout, task_name, group = name.removesuffix(match["branch"] or ""), match["task"], match["group"]
    rewards, lengths = (mapping(data.get(part), part) for part in ("reward_info", "length_info"))
    row: Row = unversioned_row(stable_id(rollout), number(rewards.get("episode_reward"), "episode_reward"))
    actions = lengths.get("num_actions", data.get("num_actions"))
    row["agentic"] = isinstance(actions, int) and actions > 1
    reason = data.get("finish_reason", mapping(data.get("failure_info"), "failure_info").get("stop_reason"))
    row["finish_reason"] = reason if isinstance(reason, str) else None
    row |= _versions(name if env else "", context)
    return TrainedResponse(step, GroupKey(context.task(task_name), stable_id(f"{step} {task_name} {group}")), row)


def _versions(name: str, context: Context) -> Row:
    """The version when the first call ended, and when the last one did; it is -1 before the first update of weights."""
    match = _VERSIONS.fullmatch(name)
    if match is None:
        return version_columns(None, None, context)
    context.limit(Lack.RESUME)
    start, end = (context.versions.model_step(max(int(match[part][:19]), 0)) for part in (1, 2))
    return version_columns(start, end, context, uniform=Precision.SEGMENT)


_GIVES = (Gives.REWARDS, Gives.TASKS, Gives.TAKES)
IMPORTER = Importer(
    name="roll",
    title="ROLL rollouts (rollout_dump_dir)",
    files="rollout_dump_data.step_<N>.jsonl",
    looks_like=lambda path, keys: (
        path.suffix == ".jsonl"
        and "global_step" in keys
        and (keys >= {"responses", "scores"} or "trajectory_data" in keys)
    ),
    read=_read,
    suffixes=(".jsonl",),
    precisions=(Precision.SEGMENT, Precision.SPAN, Precision.NONE),
    reads=("task_name", "group_id", "rollout_id", "reward", "agentic", "finish_reason", "take"),
    lacks=(Lack.DROPPED, Lack.MASK, Lack.LENGTHS),
    shapes=(
        Shape("ROLL, RLVR", "8eb27cc2", "rollout_dump_data.step_<N>.jsonl", _GIVES),
        Shape("ROLL, RLVR", "03b6314f", "rollout_data.jsonl", _GIVES),
        Shape("ROLL, agentic proxy", "8eb27cc2", "rollout_dump_data.step_<N>.jsonl", _GIVES),
        Shape(
            "ROLL, agentic native",
            "8eb27cc2",
            "rollout_dump_data.step_<N>.jsonl",
            (Gives.SEGMENT, Gives.SPAN, *_GIVES),
        ),
    ),
)
