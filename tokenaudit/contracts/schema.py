"""The rollout log, version 1: its columns, where they are needed and what they mean.

The log reader checks files against this table and `tokenaudit help columns` prints it, so that both can't drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

SCHEMA_VERSION = 1
"""The version of the log schema that this release reads and writes."""

META_SCHEMA_VERSION = "tokenaudit.schema_version"
META_CONFIG = "tokenaudit.config"
META_SOURCE = "tokenaudit.source"
META_TRUNCATED = "tokenaudit.truncated_responses"
META_LIMITS = "tokenaudit.limits"
"""JSON list of sentences: what the log's source leaves out, and which questions it therefore can't answer."""

META_DROPPED = "tokenaudit.dropped_events"
"""Events that the recorder dropped since the part before, because its queue was full."""
META_REJECTED = "tokenaudit.rejected_events"
"""Events that the recorder refused since the part before, because they couldn't be recorded."""

META_RANK = "tokenaudit.rank"
"""Rank of the recorder that wrote a part, from 0, in decimal; absent where one recorder writes the whole folder."""
META_WORLD_SIZE = "tokenaudit.world_size"
"""Ranks that record into the folder, in decimal; there with the rank."""
META_CLOCK_ORIGIN = "tokenaudit.clock_origin_us"
"""Microseconds of the Unix epoch at which `time_us` is 0, in decimal, where the recorder filled `time_us`."""

META_MISSING_RANKS = "tokenaudit.missing_ranks"
"""Ranks that wrote no part, in a log that was merged from those of the others: `3, 5 to 7 of 8`."""
META_MISSING_PARTS = "tokenaudit.missing_parts"
"""Parts that were gone, in a log that was made of the others: `part-000002.parquet to part-000004.parquet`."""

VERSION_RUNS = "response_version_runs"
"""The column that stores version runs in place of a version and a mask entry per token."""
RUN_FIELDS = ("model_step", "tokens", "trainable")
"""The fields of a version run."""

DEFAULT_TASK = "default"
"""The task of rows that name none."""


class EventKind(StrEnum):
    """What a row records."""

    PUT = "put"
    """A group enters the replay buffer; one row per response."""
    SAMPLE = "sample"
    """A group leaves its pool to be generated again."""
    REFRESH = "refresh"
    """The buffer recomputes staleness and expires what is too old."""
    TAKE = "take"
    """The trainer takes a batch of one task."""
    SYNC = "sync"
    """The rollout engine receives new weights."""


class Precision(StrEnum):
    """How well the versions of a response's tokens are known; the values of column `version_precision`."""

    EXACT = "exact"
    """The version of every token."""
    SEGMENT = "segment"
    """The version of every generation call, stamped when the call ended."""
    SPAN = "span"
    """The first and the last version that may have made tokens: `model_step` and `model_step_end`."""
    START = "start"
    """The version when generation was asked for; tokens may be newer, up to the newest one there was."""
    NONE = "none"
    """No version at all."""


class ColumnType(Enum):
    """The family of Arrow types a column is accepted in; the value says it in words."""

    TEXT = "string or dictionary of strings"
    INTEGER = "any integer type"
    INTEGER_LIST = "list of any integer type"
    MASK_LIST = "list of bool or of any integer type"
    RUN_LIST = "list of structs of integers `model_step`, `tokens`, `trainable`"
    FLAG = "bool"
    REAL = "any float or integer type"
    REAL_LIST = "list of any float type"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the log.

    Attributes:
        name: its name in the file.
        type: the Arrow types it is accepted in.
        events: the events whose rows carry it; none for a column of a workload.
        meaning: what it holds, in one sentence.
        required: whether a log without it is refused.
        replayed: whether replay reads its values.
    """

    name: str
    type: ColumnType
    events: tuple[EventKind, ...]
    meaning: str
    required: bool = False
    replayed: bool = False


_ALL = tuple(EventKind)
_PUT = (EventKind.PUT,)
_STEPS = (EventKind.PUT, EventKind.REFRESH, EventKind.TAKE, EventKind.SYNC)

_PUT_SYNC = (EventKind.PUT, EventKind.SYNC)
_PUT_SAMPLE = (EventKind.PUT, EventKind.SAMPLE)
_PUT_TAKE = (EventKind.PUT, EventKind.TAKE)


def _read(name: str, column_type: ColumnType, events: tuple[EventKind, ...], meaning: str) -> Column:
    return Column(name, column_type, events, meaning, replayed=True)


def _required(name: str, column_type: ColumnType, events: tuple[EventKind, ...], meaning: str) -> Column:
    return Column(name, column_type, events, meaning, required=True, replayed=True)


COLUMNS: tuple[Column, ...] = (
    _read("event", ColumnType.TEXT, _ALL, "`put` (default), `sample`, `refresh`, `take` or `sync`"),
    _required(
        "event_id",
        ColumnType.INTEGER,
        _ALL,
        "order and identity of events; consecutive rows with the same id are one event, and ids never fall",
    ),
    _required("train_step", ColumnType.INTEGER, _STEPS, "the step the buffer compares versions with"),
    _read(
        "model_step",
        ColumnType.INTEGER,
        _PUT_SYNC,
        "version that made the new tokens; null: `response_model_steps` is complete",
    ),
    _read("task_name", ColumnType.TEXT, (*_PUT_SAMPLE, EventKind.TAKE), "the task; null: `default`"),
    _required("group_id", ColumnType.INTEGER, _PUT_SAMPLE, "the prompt's group, unique inside the task"),
    _required(
        "rollout_id",
        ColumnType.INTEGER,
        _PUT,
        "the response, unique inside the task; several rows of one rollout in one put are its segments; "
        "a take may have a row for each response it took",
    ),
    _required(
        "status",
        ColumnType.TEXT,
        _PUT_SAMPLE,
        "put: `init`, `completed`, `aborted`, `expired`, `failed` or `filtered`; sample: the pool it came from",
    ),
    _read(
        "response_len",
        ColumnType.INTEGER,
        _PUT,
        "tokens; needed unless `response_ids` or a full `response_model_steps` gives it",
    ),
    _read(
        "response_ids",
        ColumnType.INTEGER_LIST,
        _PUT,
        "token ids; replay uses their number, and the ids where `prior_len` is missing",
    ),
    _read("prior_len", ColumnType.INTEGER, _PUT, "leading tokens that earlier puts already produced"),
    _read(
        "response_model_steps",
        ColumnType.INTEGER_LIST,
        _PUT,
        "version of each token, also as text; a shorter list is a prefix and `model_step` made the rest",
    ),
    Column(
        "model_step_end",
        ColumnType.INTEGER,
        _PUT,
        "newest version the tokens may have, where `model_step` is only the oldest they may have",
    ),
    Column(
        "version_precision",
        ColumnType.TEXT,
        _PUT,
        "how well the source knows versions: `exact` (default), `segment`, `span`, `start` or `none`",
    ),
    _read("response_mask", ColumnType.MASK_LIST, _PUT, "semantic mask, non-zero = in the loss; null: all ones"),
    _read(
        VERSION_RUNS,
        ColumnType.RUN_LIST,
        _PUT,
        "instead of the two columns above: consecutive tokens of one version, and how many of them are in the loss",
    ),
    _read("agentic", ColumnType.FLAG, _PUT, "agentic response; it exempts its whole group from the token rule"),
    _read("reward", ColumnType.REAL, _PUT, "null or not finite: unscored"),
    _read("batch_size", ColumnType.INTEGER, (EventKind.TAKE,), "groups asked for of this task"),
    Column("advantage", ColumnType.REAL, _PUT, "advantage the trainer gave the response; null or not finite: unknown"),
    Column("logprobs", ColumnType.REAL_LIST, _PUT, "log-probabilities under the rollout weights"),
    Column("train_logprobs", ColumnType.REAL_LIST, _PUT, "log-probabilities under the trained weights"),
    Column(
        "trained_mask",
        ColumnType.MASK_LIST,
        _PUT_TAKE,
        "mask the trainer used, non-zero = in the loss; on the put, or on a `take` row with `rollout_id`",
    ),
    Column("prompt_len", ColumnType.INTEGER, _PUT, "tokens of the prompt"),
    Column("finish_reason", ColumnType.TEXT, _PUT, "why generation ended"),
    Column("experts_len", ColumnType.INTEGER, _PUT, "tokens with recorded expert routing"),
    Column("tool_turns", ColumnType.INTEGER, _PUT, "tool calls made"),
    Column("seq_staleness", ColumnType.INTEGER, _PUT, "staleness as the run itself computed it"),
    Column("start_model_step", ColumnType.INTEGER, _PUT, "version in the engine when this round began"),
    Column("loss_tokens", ColumnType.INTEGER, (EventKind.TAKE,), "tokens that the trainer divided the loss by"),
    Column("generate_time_us", ColumnType.INTEGER, _PUT, "duration of this round, microseconds"),
    Column("time_us", ColumnType.INTEGER, _ALL, "time since the run began, microseconds"),
)
"""All columns, in the order in which they are documented."""

WORKLOAD_COLUMNS: tuple[Column, ...] = (
    _read("task_name", ColumnType.TEXT, (), "the task; null: `default`"),
    _required("group_id", ColumnType.INTEGER, (), "the prompt's group, unique inside the task, 0 or more"),
    _required(
        "rollout_id",
        ColumnType.INTEGER,
        (),
        "the response, unique inside the task, 0 or more; several rows of one rollout in one group are its segments",
    ),
    _required("response_len", ColumnType.INTEGER, (), "tokens it has once it is completed"),
    _required("token_time_us", ColumnType.INTEGER, (), "time to generate one token, microseconds, 1 or more"),
    _read("response_mask", ColumnType.MASK_LIST, (), "semantic mask, non-zero = in the loss; null: all ones"),
    _read("agentic", ColumnType.FLAG, (), "agentic response; it exempts its whole group from the token rule"),
    _read("reward", ColumnType.REAL, (), "null or not finite: unscored"),
    _read("failed", ColumnType.FLAG, (), "its generation ends as failed"),
    _read("filtered", ColumnType.FLAG, (), "the run's own filter rejects its group"),
)
"""All columns of a workload: one row per response, in prompt order."""

_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "event": ("event_type", "event_kind"),
    "train_step": ("step", "global_step", "training_step", "trainer_step"),
    "model_step": ("weight_version", "policy_version", "model_version", "param_version"),
    "task_name": ("task", "data_source", "env", "env_name", "dataset"),
    "group_id": ("group", "prompt_id", "prompt_index"),
    "rollout_id": ("sample_id", "response_id", "trajectory_id", "traj_id", "rollout"),
    "status": ("state", "rollout_status"),
    "response_len": ("response_length", "completion_length", "completion_len", "output_length", "num_tokens"),
    "response_ids": ("output_ids", "completion_ids", "response_token_ids", "output_token_ids"),
    "response_model_steps": ("weight_versions", "policy_versions", "token_versions", "output_versions"),
    "response_mask": (
        "loss_mask", "action_mask", "assistant_mask", "assistant_masks", "completion_mask", "semantic_mask", "mask",
    ),
    "agentic": ("is_agentic", "agent", "is_agent"),
    "reward": ("rewards", "score", "scores", "raw_reward"),
    "advantage": ("adv", "advantages", "sequence_advantage", "response_advantage"),
    "logprobs": (
        "rollout_log_probs", "rollout_logprobs", "log_probs", "logprob", "behavior_logprobs", "old_log_probs",
    ),
    "train_logprobs": ("train_log_probs", "training_logprobs", "prox_logprobs", "proximal_logprobs"),
    "trained_mask": ("train_mask", "training_mask", "effective_mask"),
    "prompt_len": ("prompt_length",),
    "finish_reason": ("stop_reason",),
    "tool_turns": ("num_turns", "tool_calls"),
    "seq_staleness": ("staleness", "sequence_staleness"),
}  # fmt: skip
SYNONYMS: dict[str, str] = {other: name for name, others in _OTHER_NAMES.items() for other in others}
"""Names that frameworks have for what a column holds, in small letters, and the column."""

COLUMN_BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}

TOKEN_COLUMNS: tuple[str, ...] = tuple(
    column.name
    for column in COLUMNS
    if column.type in (ColumnType.INTEGER_LIST, ColumnType.MASK_LIST, ColumnType.REAL_LIST)
)
"""Columns with one entry per token, in schema order."""
