"""The q that trace shows is the one training used: against log q taken out of a real trainer, on the same completions."""

import json

import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from trl import ModelConfig

from sage_rlvr.analysis.trace import trace
from sage_rlvr.errors import UserError
from sage_rlvr.launch.run import RunArguments, settings_of
from sage_rlvr.models import load_tokenizer
from sage_rlvr.train import SAGEConfig, SAGETrainer
from tests.analysis.models import FORMAT, make_run, make_samples, prompt_ids
from tests.models import tiny
from tests.slow import but_few
from tests.train.tiny import config

EACH = 4
RELATIVE = {"guide": "branch-quantile", "guide_args": {"quantile": 0.6, "ratio": 0.4}}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.save_base(tmp_path_factory.mktemp("base"))


class Spy(SAGETrainer):
    used: dict  # (rollout batch, row) → log q

    def held_log_q(self, inputs, *rest):
        log_q = super().held_log_q(inputs, *rest)
        batch = self._step // (self.args.steps_per_generation * self.num_iterations)
        for row, q, on, ids in zip(
            inputs["sage_rows"].tolist(), log_q, inputs["completion_mask"], inputs["completion_ids"]
        ):
            self.used[batch, row] = q[on.bool()] if on.any() else torch.zeros(int((ids != 0).sum()))
        return log_q


def samples_of(base, problems=2):
    """With whether it ended: completions without EOS are truncated, to TRL and in the store."""
    return [(*s, "stop" if s[6][-1] == 1 else "length") for s in make_samples(base, problems, EACH)]


def trained(folder, base, samples, **options):
    """Two steps over the samples as rollouts, a checkpoint after the first, run.json as ``train`` writes it."""
    tokenizer = load_tokenizer(base)
    problems = list(dict.fromkeys(s[1] for s in samples))
    verdicts = {(s[1], s[4]): s[5] for s in samples}

    def given(prompts, trainer):
        rows = [[s for s in samples if s[1] == p][i % EACH] for i, p in enumerate(prompts)]
        return {
            "prompt_ids": [prompt_ids(p, tokenizer) for p in prompts],
            "completion_ids": [list(r[6]) for r in rows],
            "logprobs": [[0.0] * len(r[6]) for r in rows],
        }

    def reward(prompts, completions, **kwargs):
        return [verdicts[p, c] for p, c in zip(prompts, completions)]

    rows = len(samples)
    args = config(
        SAGEConfig, folder, save_strategy="steps", save_steps=1, num_generations=EACH, temperature=0.7, shuffle_dataset=False,
        **{"per_device_train_batch_size": rows // 4, "gradient_accumulation_steps": 4} | options,
    )  # fmt: skip
    trainer = Spy(str(base), reward, args, Dataset.from_dict({"prompt": problems}), rollout_func=given)
    trainer.used = {}
    trainer.train()
    record = {
        "settings": settings_of(RunArguments(prompt_format=FORMAT), args, ModelConfig(str(base))),
        "finished": True,
    }
    (folder / "run.json").write_text(json.dumps(record))
    return trainer


def rows_of(traced):
    return pq.read_table(traced.folder).to_pylist()


CASES = {
    "the reference's entropy": {"guide": "tempered", "guide_args": {"threshold": 2.0, "source": "reference"}},
    "a quantile, level": {"guide": "tempered-quantile", "guide_args": {"level": True}},
    "a quantile, centred, truncated rows masked": RELATIVE
    | {"guide_center": "batch", "mask_truncated_completions": True},
    "rewards": {"guide": "verified", "guide_args": {"source": "policy"}},
    "a schedule": {"guide": "token", "guide_args": {"sigma": 0.0, "periods": 1}},
}


@pytest.mark.parametrize("case", but_few(CASES, {2, 3, 4}))
def test_q_is_that_of_training_on_the_same_batch(tmp_path, base, case):
    samples = samples_of(base)
    trainer = trained(tmp_path / "train", base, samples, **CASES[case])
    run = make_run(tmp_path / "eval", base, samples)
    traced = trace(run, [tmp_path / "train" / "checkpoint-1"], batch_tokens=100)
    rows = rows_of(traced)
    assert len(rows) == len(samples) == 8
    problems = list(dict.fromkeys(s[1] for s in samples))
    for row in rows:
        used = trainer.used[1, problems.index(row["problem"]) * EACH + row["index"]]  # the batch after checkpoint-1
        assert torch.tensor(row["q"]).log().tolist() == pytest.approx(used.tolist(), abs=1e-4)
    assert max(abs(float(q.exp().max()) - 1) for q in trainer.used.values()) > 0.02
    moved = max(float((trainer.used[1, i] - trainer.used[0, i]).abs().max()) for i in range(8))
    assert moved > 1e-3 or "reference" in case, "the checkpoint's q is not the start's"
    assert traced.settings["temperature"] == 0.7
    assert traced.settings.get("seed") == (7 if case == "a schedule" else None)
    if "quantile" in case or "centred" in case:
        assert "8 completions taken for one rollout batch (in training 8 rows)" in traced.settings["q"]


def test_fewer_rows_than_trainings_batch_show_no_q(tmp_path, base):
    """The gate of one completion alone opens on tokens that the batch's leaves shut."""
    samples = samples_of(base)
    trained(tmp_path / "train", base, samples, **RELATIVE)
    run = make_run(tmp_path / "eval", base, samples)
    point = tmp_path / "train" / "checkpoint-1"
    few = trace(run, [point], per_problem=3)
    assert few.settings["q"].startswith(
        "not shown: it depends on the whole rollout batch, and that had 8 rows and 6 comp"
    )
    for row in rows_of(few):
        assert row["q"] is None
        assert row["penalty"] is None
        assert len(row["entropies"]) == len(row["logps"]) == len(row["tokens"])
    with pytest.raises(UserError, match="remove this one"):
        trace(run, [point])
    record = json.loads((tmp_path / "train" / "run.json").read_text())
    del record["settings"]["generation_batch_size"]
    (tmp_path / "train" / "run.json").write_text(json.dumps(record))
    old = trace(run, [point], out=tmp_path / "old")
    assert "run.json does not say how many rows" in old.settings["q"]
    assert all(row["q"] is None for row in rows_of(old))


def test_a_trace_cut_short_goes_on_with_the_same_batch(tmp_path, base, monkeypatch):
    samples = samples_of(base)
    trained(tmp_path / "train", base, samples, **RELATIVE)
    run = make_run(tmp_path / "eval", base, samples)
    point = tmp_path / "train" / "checkpoint-1"
    whole = {(r["problem"], r["index"]): r["q"] for r in rows_of(trace(run, [point], out=tmp_path / "whole"))}
    monkeypatch.setattr("sage_rlvr.analysis.trace.SHARD", 3)
    cut = trace(run, [point])
    last = sorted(cut.folder.glob("*.parquet"))[0]
    lost = pq.read_table(last).num_rows
    last.unlink()
    again = trace(run, [point])
    assert again.written == lost > 0
    assert {(r["problem"], r["index"]): r["q"] for r in rows_of(again)} == whole


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "no run.json beside the checkpoints says which guide"),
        ({"guide": "branch", "sync_ref_model": True}, "the run moved its reference"),
        ({"guide": "branch", "anchor_reset": 5}, "the run's reference became its policy every 5 steps"),
        ({"guide": "group"}, "the guide follows what training's own groups and batches showed"),
        ({"guide": "value"}, "the guide follows what training's own groups and batches showed"),
    ],
)
def test_what_cannot_be_told_is_not_shown(tmp_path, base, settings, why):
    home = tmp_path / "train"
    tiny.save_adapter(home / "checkpoint-5", base)
    (home / "run.json").write_text(json.dumps({"settings": {"model_name_or_path": str(base)} | settings}))
    run = make_run(tmp_path / "eval", base, samples_of(base, 1))
    traced = trace(run, [home])
    assert f"not shown: {why}" in traced.settings["q"]
    assert all(r["q"] is None and r["penalty"] is None and r["logps"] for r in rows_of(traced))


def test_a_schedule_without_its_step_shows_no_q_there(tmp_path, base):
    home = tmp_path / "train"
    tiny.save_adapter(home / "checkpoint-5", base)
    record = {"settings": {"guide": "token", "max_steps": -1, "model_name_or_path": str(base)}}
    (home / "run.json").write_text(json.dumps(record))
    run = make_run(tmp_path / "eval", base, samples_of(base, 1))
    traced = trace(run, [home, base], out=tmp_path / "unknown")
    assert [n.split(":")[0] for n in traced.notes] == ["q at train/checkpoint-5", f"q at {base.name}"]
    assert all(r["q"] is None for r in rows_of(traced))
    state = {"log_history": [], "max_steps": 10}  # a run told epochs, not steps
    (home / "checkpoint-5" / "trainer_state.json").write_text(json.dumps(state))
    known = {r["checkpoint"]: r["q"] for r in rows_of(trace(run, [home, base], out=tmp_path / "known"))}
    assert known["train/checkpoint-5"] is not None
    assert known[base.name] is None


def test_runs_with_another_q_do_not_share_a_trace(tmp_path, base):
    for name, guide in (("one", "branch"), ("two", "tempered")):
        tiny.save_adapter(tmp_path / name / "checkpoint-5", base)
        record = {"settings": {"guide": guide, "model_name_or_path": str(base)}}
        (tmp_path / name / "run.json").write_text(json.dumps(record))
    run = make_run(tmp_path / "eval", base, samples_of(base, 1))
    with pytest.raises(UserError, match=r"one was trained with guide='branch' and .*two with 'tempered'"):
        trace(run, [tmp_path / "one", tmp_path / "two"])
    assert trace(run, [tmp_path / "one", tmp_path / "two"], guide="branch").settings["q"] == "as asked in the call"
