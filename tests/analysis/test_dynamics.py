"""Thirds, merging and overfitting, from logs whose numbers are known."""

import json

import pytest

from sage_rlvr.analysis.dynamics import dynamics, smoothed, thirds
from sage_rlvr.analysis.records import read_log, training_of
from sage_rlvr.errors import UserError
from tests.analysis.stores import make_store, words, write_log

ENTRIES = [{"step": s, "grad_norm": float(s), "reward": s / 10, "kl": 0.1, "sage/q_mean": 1.1} for s in range(1, 10)]


def test_gradient_norm_by_thirds(tmp_path):
    d = dynamics(write_log(tmp_path, ENTRIES, {"max_steps": 9}))
    assert {k: t.mean for k, t in d.grad_norm.items()} == {"early": 2.0, "mid": 5.0, "late": 8.0}
    assert d.grad_norm["mid"].std == pytest.approx(1.0)
    assert d.curves["sage/q_mean"] == [(s, 1.1) for s in range(1, 10)]


def test_thirds_of_a_half_finished_run_are_thirds_of_what_was_planned(tmp_path):
    d = dynamics(write_log(tmp_path, ENTRIES, {"max_steps": 18}, finished=False))
    assert d.grad_norm["early"].mean == pytest.approx(3.5)
    assert d.grad_norm["mid"].mean == pytest.approx(8.0)
    assert d.grad_norm["late"].mean is None
    assert "half finished, 9 of 18" in d.notes[0]


def test_thirds_when_three_does_not_divide():
    found = thirds([(s, 1.0) for s in range(1, 11)], 10)
    assert [t.steps for t in found.values()] == [3, 3, 4]


def test_held_out_and_reward_overfitting(tmp_path):
    held = {0: 0.2, 3: 0.5, 6: 0.3, 9: 0.1}
    entries = [{"step": s, "held_out/aime/pass@1": v, "held_out/aime/pass@8": 0.9} for s, v in held.items()]
    d = dynamics(write_log(tmp_path, [*entries[:1], *ENTRIES, *entries[1:]], {"max_steps": 9}))
    assert d.held_out["aime/pass@1"] == list(held.items())
    assert d.overfit["peak"] == {"step": 3, "held_out": 0.5, "reward": pytest.approx(0.3)}
    assert d.overfit["end"] == {"step": 9, "held_out": 0.1, "reward": pytest.approx(0.9)}
    assert d.overfit["lost"] == pytest.approx(0.4)


def test_a_line_cut_short_and_the_summary_are_left_out(tmp_path):
    write_log(tmp_path, [*ENTRIES, {"step": 9, "train_runtime": 3.0, "reward": 99.0}])
    with (tmp_path / "log.jsonl").open("a") as f:
        f.write('{"step": 10, "rew')
    log = read_log(tmp_path)
    assert log.last_step == 9
    assert log.series("reward")[-1] == (9, 0.9)
    assert "1 unreadable lines" in log.notes[0]


@pytest.mark.parametrize("step", ["NaN", "Infinity", '"3"', "null"])
def test_a_line_without_a_step_is_left_out(tmp_path, step):
    write_log(tmp_path, ENTRIES)
    with (tmp_path / "log.jsonl").open("a") as f:
        f.write(f'{{"step": {step}, "reward": 1}}\n')
    log = read_log(tmp_path)
    assert log.last_step == 9
    assert "1 unreadable lines" in log.notes[0]


def test_nan_is_no_value(tmp_path):
    write_log(tmp_path, [{"step": 1, "kl": float("nan")}, {"step": 2, "kl": 0.5}])
    assert read_log(tmp_path).series("kl") == [(2, 0.5)]


def test_trainer_state_of_the_newest_checkpoint(tmp_path):
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        state = {"log_history": [{"step": step, "reward": step / 10}], "max_steps": 12}
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
    log = read_log(tmp_path)
    assert (log.series("reward"), log.planned) == ([(10, 1.0)], 12)


def test_no_log_is_said(tmp_path):
    with pytest.raises(UserError, match="no training log"):
        dynamics(tmp_path)


def test_smoothed():
    assert smoothed([(1, 1.0), (2, 3.0), (3, 5.0)], 2) == [(1, 1.0), (2, 2.0), (3, 4.0)]


def test_the_training_run_behind_an_evaluation(tmp_path, monkeypatch):
    train = write_log(tmp_path / "x", ENTRIES, {})
    (train / "checkpoint-5").mkdir()
    inside = make_store(train / "eval", words("t", {"p": "1"}))
    by_adapter = make_store(
        tmp_path / "e1", words("t", {"p": "1"}), {"model": "m", "adapter": str(train / "checkpoint-5")}
    )
    by_model = make_store(tmp_path / "e2", words("t", {"p": "1"}), {"model": str(train)})
    assert training_of(train) == training_of(inside) == training_of(by_adapter) == training_of(by_model) == train
    monkeypatch.chdir(train)  # a Hub id is no path into whatever folder one happens to stand in
    stranger = make_store(tmp_path / "e3", words("t", {"p": "1"}), {"model": "gpt2"})
    assert training_of(stranger) is None
    assert training_of(tmp_path / "gone") is None
