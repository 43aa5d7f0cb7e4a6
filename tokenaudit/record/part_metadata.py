"""What every part of a recording says of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenaudit.config.loading import load_settings
from tokenaudit.config.model import resolved
from tokenaudit.contracts.schema import META_CLOCK_ORIGIN
from tokenaudit.log.writer import log_metadata
from tokenaudit.record.ranks import Rank

RunConfig = Path | str | Mapping[str, Any] | None
"""The run's own config: a TOML file, or a mapping like it."""


def run_metadata(config: RunConfig, source: str, rank: Rank | None) -> dict[str, str]:
    """Key-value metadata of a recording's parts; the config with defaults filled in.

    Raises:
        ConfigError: the config can't be used.
    """
    config_json = None
    if config is not None:
        data, path = (config, None) if isinstance(config, Mapping) else (None, Path(config))
        settings = load_settings(config_path=path, log_config=data, working_dir=Path.cwd(), isolated=True)
        config_json = json.dumps(resolved(settings.config))
    return log_metadata(config_json, source) | (rank.metadata if rank else {})


def clock_metadata(origin_us: int | None) -> dict[str, str]:
    """The instant at which `time_us` is 0, if it is known."""
    return {} if origin_us is None else {META_CLOCK_ORIGIN: str(origin_us)}
