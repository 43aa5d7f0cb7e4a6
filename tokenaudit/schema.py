"""The rollout log, version 1: its columns, where they are needed and what they mean.

The log reader checks files against this table and the README prints it, so that both can't drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

SCHEMA_VERSION = 1
"""The version of the log schema that this release reads and writes."""

META_SCHEMA_VERSION = "tokenaudit.schema_version"
META_CONFIG = "tokenaudit.config"
META_SOURCE = "tokenaudit.source"

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


class ColumnType(Enum):
    """The family of Arrow types a column is accepted in; the value says it in words."""

    TEXT = "string or dictionary of strings"
    INTEGER = "any integer type"
    INTEGER_LIST = "list of any integer type"
    MASK_LIST = "list of bool or of any integer type"
    FLAG = "bool"
    REAL = "any float or integer type"
    REAL_LIST = "list of any float type"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the log.

    Attributes:
        name: its name in the file.
        type: the Arrow types it is accepted in.
        events: the events whose rows carry it.
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

COLUMNS: tuple[Column, ...] = (
    Column("event", ColumnType.TEXT, _ALL, "`put` (default), `sample`, `refresh`, `take` or `sync`", replayed=True),
    Column("event_id", ColumnType.INTEGER, _ALL, "order and identity of events; consecutive rows with the same "
           "id are one event, and ids never fall", required=True, replayed=True),
    Column("train_step", ColumnType.INTEGER, _STEPS, "the step the buffer compares versions with", required=True,
           replayed=True),
    Column("model_step", ColumnType.INTEGER, (EventKind.PUT, EventKind.SYNC), "version that made the new tokens; "
           "null: `response_model_steps` is complete", replayed=True),
    Column("task_name", ColumnType.TEXT, (EventKind.PUT, EventKind.SAMPLE, EventKind.TAKE),
           "the task; null: `default`", replayed=True),
    Column("group_id", ColumnType.INTEGER, (EventKind.PUT, EventKind.SAMPLE), "the prompt's group, unique inside "
           "the task", required=True, replayed=True),
    Column("rollout_id", ColumnType.INTEGER, _PUT, "the response, unique inside the task; several rows of one "
           "rollout in one put are its segments", required=True, replayed=True),
    Column("status", ColumnType.TEXT, (EventKind.PUT, EventKind.SAMPLE), "put: status of the response; sample: "
           "the pool the group came from", required=True, replayed=True),
    Column("response_len", ColumnType.INTEGER, _PUT, "tokens of the response; needed unless `response_ids` or a "
           "full `response_model_steps` gives it", replayed=True),
    Column("response_ids", ColumnType.INTEGER_LIST, _PUT, "token ids; replay uses the length, and the ids where "
           "`prior_len` is missing", replayed=True),
    Column("prior_len", ColumnType.INTEGER, _PUT, "leading tokens that earlier puts already produced", replayed=True),
    Column("response_model_steps", ColumnType.INTEGER_LIST, _PUT, "version of each token; a shorter list is a "
           "prefix and the rest was made by `model_step`", replayed=True),
    Column("response_mask", ColumnType.MASK_LIST, _PUT, "semantic mask, non-zero = in the loss; null: all ones",
           replayed=True),
    Column("agentic", ColumnType.FLAG, _PUT, "whether the response is agentic, which exempts its group from the "
           "token rule", replayed=True),
    Column("reward", ColumnType.REAL, _PUT, "null or not finite: unscored", replayed=True),
    Column("batch_size", ColumnType.INTEGER, (EventKind.TAKE,), "groups asked for of this task", replayed=True),
    Column("logprobs", ColumnType.REAL_LIST, _PUT, "log-probabilities under the rollout weights"),
    Column("train_logprobs", ColumnType.REAL_LIST, _PUT, "log-probabilities under the trained weights"),
    Column("prompt_len", ColumnType.INTEGER, _PUT, "tokens of the prompt"),
    Column("finish_reason", ColumnType.TEXT, _PUT, "why generation ended"),
    Column("experts_len", ColumnType.INTEGER, _PUT, "tokens with recorded expert routing"),
    Column("tool_turns", ColumnType.INTEGER, _PUT, "tool calls made"),
    Column("seq_staleness", ColumnType.INTEGER, _PUT, "staleness as the run itself computed it"),
    Column("generate_time_us", ColumnType.INTEGER, _PUT, "duration of this round of generation, microseconds"),
    Column("time_us", ColumnType.INTEGER, _ALL, "time since the run began, microseconds"),
)  # fmt: skip

COLUMN_BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}
