"""Every column that an import leaves out is named, in each of the formats of tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.importers.shapes import real
from tests.importers.test_import_dumps import state

ROW = {"train_step": 1, "group_id": "a", "model_step": 0, "response_len": 2, "prompt": "hi"}


def write(path: Path, rows: list[dict[str, object]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif path.suffix == ".csv":
        lines = [names, *([row.get(name, "") for name in names] for row in rows)]
        path.write_text("".join(f"{','.join(map(str, line))}\n" for line in lines))
    else:
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)


def noted(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("note: columns not read: ")]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_columns_of_all_rows_and_files_are_named(suffix: str, run_cli):
    Path("a").mkdir()
    write(Path(f"a/1{suffix}"), [ROW, ROW | {"Score": 0.5, "entropy": 1}])
    write(Path(f"a/2{suffix}"), [ROW | {"group_id": "b", "late": 1, "is_agentic": True}])
    ran = run_cli("import", "a", "-o", "log.parquet")
    assert ran.code == 0
    names = "prompt, Score, entropy, late, is_agentic (--map Score=reward --map is_agentic=agentic)"
    assert noted(ran.err) == [f"note: columns not read: {names}"]
    assert "columns" not in ran.out
    assert f"not read: {names}" in run_cli("import", "a", "--dry-run").out
    ran = run_cli("import", "a", "-o", "log.parquet", "--force", "--map", "Score=reward", "--map", "is_agentic=agentic")
    assert noted(ran.err) == ["note: columns not read: prompt, entropy, late (--map theirs=ours)"]


def test_nothing_is_said_where_all_is_read(run_cli):
    write(Path("a.jsonl"), [{name: value for name, value in ROW.items() if name != "prompt"}])
    assert noted(run_cli("import", "a.jsonl", "-o", "log.parquet").err) == []


def test_a_column_is_suggested_once_and_not_where_it_is_there(run_cli):
    write(Path("a.jsonl"), [ROW | {"loss_mask": [1, 1], "REWARD": 1, "reward": 2, "LOSS_MASK": [1, 1]}])
    (line,) = noted(run_cli("import", "a.jsonl", "-o", "log.parquet").err)
    assert line.endswith("prompt, loss_mask, REWARD, LOSS_MASK (--map loss_mask=response_mask)")


def test_columns_of_a_trainers_table_are_named_without_map(run_cli):
    Path("completions").mkdir()
    row = {"step": 1, "prompt": "p", "completion": "c", "advantage": 0.1, "score": 1.0, "answer": "42"}
    write(Path("completions/completions_00001.parquet"), [row])
    assert noted(run_cli("import", "completions", "-o", "log.parquet").err) == ["note: columns not read: answer"]


def test_names_are_escaped_and_bounded(run_cli):
    write(Path("a.jsonl"), [ROW | {"\x1b[31m": 1} | {f"c{number}": 0 for number in range(5000)}])
    (line,) = noted(run_cli("import", "a.jsonl", "-o", "log.parquet").err)
    assert "\\x1b[31m, c0, c1" in line
    assert line.count(",") < 1000


@pytest.mark.parametrize(
    ("archive", "names"),
    [
        ("verl_tq_real",
         "prompts, responses, loss_mask, input_ids, position_ids, metrics, extra_fields, uid, "
         "global_steps, raw_prompt, reward_model, multi_modal_inputs, seq_len"),
        ("nemo_sc_default", "input_ids, generation_logprobs, sample_mask, prompt_ids_for_adv"),
        ("skyrl", "response_length"),
        ("miles_version_spans",
         "rewards, truncated, rollout_ids, rollout_mask_sums, raw_reward, "
         "rollout_id, prompt, multimodal_inputs, multimodal_train_inputs, response, label, rollout_routed_experts, "
         "rollout_indexer_topk, teacher_log_probs, opd_reverse_kl, generate_function_path, train_metadata, "
         "adapter, reward_spec, routing_key, trainer_model_id, non_generation_time, spec_info, prefix_cache_info"),
    ],
)  # fmt: skip
def test_fields_of_responses_in_real_dumps_are_named(archive: str, names: str, tmp_path: Path, run_cli):
    ran = run_cli("import", real(archive, tmp_path), "-o", "log.parquet")
    assert noted(ran.err) == [f"note: columns not read: {names}"]


def test_fields_of_an_xtuner_dump_are_named_whatever_their_keys_are(run_cli):
    first, second = state(10, 1, [5, 6], session=7), state(11, 1, [6], late=1)
    first.fields |= {3: 4, None: 5}
    torch.save([[first, second]], "debug_rollout_9.pt")
    ran = run_cli("import", "debug_rollout_9.pt", "-o", "log.parquet")
    assert ran.code == 0
    assert noted(ran.err) == ["note: columns not read: session, 3, None, late"]
