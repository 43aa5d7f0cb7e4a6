"""From a request to a file of masks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from tokenaudit.config.loading import Settings
from tokenaudit.config.model import resolved
from tokenaudit.contracts.errors import Notice
from tokenaudit.contracts.files import replacing
from tokenaudit.masks.backends import Backend
from tokenaudit.masks.filters import Masking
from tokenaudit.masks.plan import Selection, plan_masks
from tokenaudit.masks.writing import MaskTotals, write_masks
from tokenaudit.replay.notices import quarantine_notices, settings_notices
from tokenaudit.replay.open_loop import timeline_of
from tokenaudit.replay.request import Paths, RunOptions, RunRequest
from tokenaudit.replay.session import load_log, no_collections


@dataclass(frozen=True, slots=True)
class MaskedLog:
    """What was written, the settings it was made with, and what a person should know about it."""

    totals: MaskTotals
    settings: Settings
    notices: tuple[Notice, ...]


def mask_log(
    paths: Paths | RunRequest,
    output: Path,
    backend: Backend,
    *,
    selection: Selection | None = None,
    masking: Masking | None = None,
    with_weights: bool = False,
    **options: Unpack[RunOptions],
) -> MaskedLog:
    """Write the masks of every response that a replay of a log takes.

    Args:
        paths: files, folders or glob patterns that make up one log; or a whole request.
        output: the Parquet file; it appears when it is complete.
        backend: computes the masks.
        selection: which masks are wanted; None: of everything taken.
        masking: takes further tokens out of the loss, such as an off-policy correction; None: nothing does.
        with_weights: write its weights, too.
        options: as for `session.replay_log`.

    Raises:
        TokenauditError: the log, the config or their combination can't be used, or the file can't be written.
    """
    request = RunRequest.of(paths, options, "replay_log")
    loaded = load_log(request)
    log, digest, settings = loaded.log, loaded.digest, loaded.settings
    kind = timeline_of(digest, request.timeline)
    progress = request.stage("replaying", len(digest.events.kind))
    with no_collections():
        planned = plan_masks if masking is None else masking.plan
        plan = planned(digest, settings.config, request.timeline, selection, progress)
    with replacing(output) as target:
        totals = write_masks(
            target,
            log,
            plan,
            backend,
            content_hash=digest.content_hash(),
            config=resolved(settings.config),
            masking=masking,
            with_weights=with_weights,
            on_progress=request.stage(f"masking {log.name}", log.rows),
        )
    of_settings = settings_notices(settings, digest.tasks, kind)
    return MaskedLog(totals, settings, (*quarantine_notices(digest), *of_settings))
