"""A file of each shape that the importers declare: what a trainer's own code wrote, or else one by hand like it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import torch

from tests.importers import test_import_dumps as dumps
from tests.importers import test_import_texts as texts
from tests.importers.importing import jsonl
from tokenaudit.importers.base import Importer
from tokenaudit.importers.detect import IMPORTERS
from tokenaudit.importers.shapes import Shape

REAL = Path(__file__).parent / "real"


def real(name: str, folder: Path) -> Path:
    """An archive of files that a trainer's own code wrote, unpacked into a folder."""
    with tarfile.open(REAL / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def archived(name: str) -> Callable[[Path], Path]:
    """What unpacks such an archive."""
    return lambda folder: real(name, folder)


def _saved(path: Path, value: object) -> Path:
    path.parent.mkdir()
    torch.save(value, path)
    return path


_STATE = dumps.state(10, 1, [5, 6], response_mask=[1, 0])


def _xtuner_batch(folder: Path) -> Path:
    return _saved(folder / "dump" / "debug_rollout_8.pt", [[_STATE]])


def _xtuner_buffer(folder: Path) -> Path:
    item = dumps.StorageItem([_STATE], 1, 4, "math", dumps.Status.COMPLETED, 2)
    saved = {"storage": "NaiveStorage", "storage_state": {"items": [item], "next_uid": 3, "next_timestamp_id": 8}}
    return _saved(folder / "dump" / "replay_buffer.pth", saved)


def _prime_traces(folder: Path) -> Path:
    """What v0.8.0 wrote of one step, and the same as of a later one, whose policy may have been newer."""
    source = real("prime_v0.8.0", folder)
    text = (source / "rollouts" / "step_1" / "train" / "all" / "traces.jsonl").read_text()
    for step, kind in ((1, "effective"), (3, "all"), (3, "effective")):
        path = source / "rollouts" / f"step_{step}" / "train" / kind / "traces.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if step == 1 else re.sub(r'"((?:group_|episode_)?id)":"', r'"\1":"later ', text))
    return source


def _nemo_classic(folder: Path) -> Path:
    batch = {
        "token_loss_mask": torch.tensor([[0, 0, 1, 1, 1, 0], [0, 0, 1, 0, 1, 1]]),
        "input_lengths": torch.tensor([5, 6]),
        "total_reward": torch.tensor([1.0, 0.0]),
    }
    columns = {"trajectories": [{"batch": batch}] * 2, "trajectory_versions": [7, 8], "target_weight_versions": [9, 8]}
    return _saved(folder / "dump" / "replay_buffer.pt", columns)


def _tinker(folder: Path) -> Path:
    rows = [texts.summary(8, 0, index, 8, (5, 9)) for index in range(2)]
    jsonl(folder / "dump" / "iteration_8" / "train_rollout_summaries.jsonl", *rows)
    return folder / "dump"


def _table(folder: Path) -> Path:
    common = {"group_id": 1, "train_step": 1, "response_len": 2, "reward": 1.0, "task_name": "math"}
    lists = {"response_mask": [1, 0], "trained_mask": [1, 0], "response_ids": [5, 6]}
    floats = {"logprobs": [-0.5, -0.5], "train_logprobs": [-0.5, -0.5]}
    versions = [
        {"model_step": 0},
        {"model_step": 0, "version_precision": "segment"},
        {"model_step": 0, "model_step_end": 1},
        {"model_step": 0, "version_precision": "start", "model_step_end": 1},
    ]
    take = {"event": "take", "train_step": 1, "task_name": "math", "batch_size": 1}
    return jsonl(folder / "dump" / "mine.jsonl", *(common | lists | floats | version for version in versions), take)


_SKYRL, _ROLL = "dumped_data/global_step_<N>_training_input.pkl", "rollout_dump_data.step_<N>.jsonl"
CASES: dict[tuple[str, str], Callable[[Path], Path]] = {
    ("XTuner", "debug_rollout_<step>.pt"): _xtuner_batch,
    ("XTuner", "replay_buffer.pth"): _xtuner_buffer,
    ("XTuner", "train_rollout_<step>.jsonl"): archived("xtuner_train_rollout"),
    ("XTuner", "rollout_idx_<step>_trajectory.jsonl"): archived("xtuner_v1.0.1"),
    ("AReaL", "rollout/<version>/<task_id>.jsonl"): archived("areal_two_ranks"),
    ("prime-rl", "rollouts/step_<N>/train/{all,effective}/traces.jsonl"): archived("prime_resumed"),
    ("prime-rl", "rollouts/step_<N>/train/{all,effective}/traces.jsonl, a trace a line"): _prime_traces,
    ("prime-rl", "monitors/file/traces/{stream,annotations/*}/<NNNNN>.jsonl[.zst]"): archived("prime_monitor"),
    ("prime-rl", "token_exports/step_<N>/rank_<R>.jsonl"): lambda folder: (
        real("prime_exports", folder) / "token_exports"
    ),
    ("slime", "rollout_data/<rollout_id>.pt"): archived("slime_failed_member"),
    ("slime", "rollout_data/, train_data/<rollout_id>.pt"): archived("slime_train_data"),
    ("miles", "rollout_data/, train_data/<rollout_id>_<rank>.pt"): archived("miles_train_data_ranks"),
    ("miles, spans of versions", "rollout_data/, train_data/<rollout_id>_<rank>.pt"): archived("miles_version_spans"),
    ("verl", "<global_step>.jsonl"): archived("verl_balanced_order"),
    ("verl", "<step>/<inner>/tq_batch.pt"): archived("verl_tq_jagged"),
    ("NeMo-RL, asynchronous GRPO", "replay_buffer.pt"): _nemo_classic,
    ("NeMo-RL, single controller", "replay_buffer.pt"): archived("nemo_sc_inorder"),
    ("NeMo-RL, GRPO", "train_data_step<N>.jsonl"): archived("nemo_train_groups"),
    ("SkyRL", _SKYRL): archived("skyrl_bf16_padded"),
    ("SkyRL, step-wise", _SKYRL): archived("skyrl_turns"),
    ("SkyRL, skyrl_train", _SKYRL): archived("skyrl_train_v0.1.0"),
    ("ROLL, RLVR", _ROLL): archived("roll_rlvr"),
    ("ROLL, RLVR", "rollout_data.jsonl"): archived("roll_rollout_data"),
    ("ROLL, agentic proxy", _ROLL): archived("roll_proxy"),
    ("ROLL, agentic native", _ROLL): archived("roll_native"),
    ("tinker-cookbook", "iteration_<N>/train_rollout_summaries.jsonl"): _tinker,
    ("TRL", "completions/completions_<step>.parquet"): archived("trl_extra_float"),
    ("any", "*.jsonl, *.csv, *.tsv, *.parquet"): _table,
}
"""What makes the file of each shape in a folder, by trainer and name of the file."""

SHAPES: list[tuple[Importer, Shape]] = [
    (importer, shape) for importer in IMPORTERS.values() for shape in importer.shapes
]
"""Every shape with its importer."""
