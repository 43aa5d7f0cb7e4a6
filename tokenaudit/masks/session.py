"""From paths to a file of masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenaudit.config.loading import Settings
from tokenaudit.config.sections import resolved
from tokenaudit.contracts.files import replacing
from tokenaudit.log.cache import DigestCache
from tokenaudit.masks.batch import Backend
from tokenaudit.masks.plan import Selection, plan_masks
from tokenaudit.masks.writing import MaskTotals, write_masks
from tokenaudit.replay.notices import quarantine_notices
from tokenaudit.replay.request import TimelineKind
from tokenaudit.replay.result import Notice
from tokenaudit.replay.session import Progress, load_log, no_collections, stage


@dataclass(frozen=True, slots=True)
class MaskedLog:
    """What was written, the settings it was made with, and what a person should know about it."""

    totals: MaskTotals
    settings: Settings
    notices: tuple[Notice, ...]


def mask_log(
    paths: Sequence[Path],
    output: Path,
    backend: Backend,
    *,
    config_path: Path | None = None,
    overrides: Sequence[str] = (),
    timeline: TimelineKind | None = None,
    selection: Selection | None = None,
    quarantine: bool = False,
    isolated: bool = False,
    cache: DigestCache | None = None,
    working_dir: Path | None = None,
    on_progress: Progress | None = None,
) -> MaskedLog:
    """Write the masks of every response that a replay of a log takes.

    Args:
        paths: files, folders or glob patterns that make up one log.
        output: the Parquet file; it appears when it is complete.
        backend: computes the masks.
        config_path: as for `session.replay_log`, like all that isn't named here.
        overrides: `key=value` texts laid over the config.
        timeline: where refreshes and takes come from.
        selection: which masks are wanted; None: of everything taken.
        quarantine: leave out groups with structural faults.
        isolated: look for no config file.
        cache: where digests are kept between runs.
        working_dir: where relative config paths begin.
        on_progress: told about the work as it goes on.

    Raises:
        TokenauditError: the log, the config or their combination can't be used, or the file can't be written.
    """
    log, digest, settings = load_log(
        paths,
        config_path=config_path,
        overrides=overrides,
        quarantine=quarantine,
        isolated=isolated,
        cache=cache,
        working_dir=working_dir,
        on_progress=on_progress,
    )
    progress = stage(on_progress, "replaying", len(digest.events.kind))
    with no_collections():
        plan = plan_masks(digest, settings.config, timeline, selection, progress)
    with replacing(output) as target:
        totals = write_masks(
            target,
            log,
            plan,
            backend,
            content_hash=digest.content_hash(),
            config=resolved(settings.config),
            on_progress=stage(on_progress, f"masking {log.name}", log.rows),
        )
    return MaskedLog(totals, settings, tuple(quarantine_notices(digest)))
