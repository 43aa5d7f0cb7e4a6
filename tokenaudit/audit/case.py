"""What the checks look at."""

from __future__ import annotations

from dataclasses import dataclass

from tokenaudit.audit.files import FileFacts
from tokenaudit.audit.life import Life
from tokenaudit.audit.puts import PutRuns
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.trained import TrainedMasks
from tokenaudit.config.sections import Config


@dataclass(frozen=True, slots=True)
class Case:
    """Everything known about the audited log.

    Attributes:
        name: name of the log, without folders.
        table: its rows.
        files: its files.
        config: the config it is held against; None where neither the user nor the log names one.
        recorded_interval: the sync interval in the log's own config; None if it doesn't tell.
        puts: the version runs of its puts; None where replay can't read the log.
        life: the replay of that config; None where there is none.
        why_no_life: why there is none; empty where there is one.
        trained: what the trainer's masks add up to; None where none is recorded, or nothing tells the step.
    """

    name: str
    table: LogTable
    files: FileFacts
    config: Config | None
    recorded_interval: int | None
    puts: PutRuns | None
    life: Life | None
    why_no_life: str
    trained: TrainedMasks | None

    @property
    def readable(self) -> PutRuns:
        """The version runs, for checks that run only where there are some."""
        assert self.puts is not None
        return self.puts

    @property
    def replayed(self) -> Life:
        """The replay, for checks that run only where there is one."""
        assert self.life is not None
        return self.life

    @property
    def known_config(self) -> Config:
        """The config, for checks that run only where there is one."""
        assert self.config is not None
        return self.config


def plural(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
