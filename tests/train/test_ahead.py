"""rollout_ahead: what is drawn with which weights, that it is drawn meanwhile, and that nothing else changes."""

import json
import signal
import threading
import time

import pytest
import torch

from sage_rlvr import UserError
from sage_rlvr.runs.checkpoint import load_state
from sage_rlvr.train import SAGEConfig, SAGETrainer, callbacks

from . import server, tiny
from .test_distributed import launch
from .test_resume import metrics, run


@pytest.fixture(autouse=True)
def server_there(monkeypatch):
    server.replace(monkeypatch.setattr)


def built(folder, out, reward=tiny.hash_reward, rows=12, ahead=True, **options):
    args = tiny.config(SAGEConfig, out, **server.OPTIONS | {"rollout_ahead": ahead, "max_steps": 5} | options)
    held_out = tiny.dataset(4) if "eval_steps" in options else None
    return SAGETrainer(folder, reward, args, tiny.dataset(rows), held_out)


def client(made):
    return made.vllm_generation.vllm_client


def logged(made):
    return [{k: v for k, v in e.items() if k not in tiny.TIMES} for e in made.state.log_history if "loss" in e]


def test_each_batch_is_drawn_with_the_weights_of_one_batch_ago(folder, tmp_path):
    judged = []

    def reward(prompts, completions, completion_ids, **_):
        judged.append((prompts[0], completion_ids))
        return tiny.hash_reward(completions)

    made = built(folder, tmp_path, reward)
    made.train()
    calls = client(made).calls
    assert [sent for sent, _, _ in calls] == [1, 1, 2, 3, 4], (
        "the first two with the first weights; the last batch is the fifth"
    )
    assert [ids for _, _, ids in calls] == [ids for _, ids in judged], "what was drawn is what is trained on, in order"
    encode = made.processing_class
    assert [prompts[0] for _, prompts, _ in calls] == [encode(prompt)["input_ids"] for prompt, _ in judged]
    apart = [e["sampling/sampling_logp_difference/max"] for e in logged(made)]
    assert apart[0] < 1e-4 < 1e-3 < min(apart[1:]), "log-probs are the sampler's, which is one step behind"
    assert all(e["grad_norm"] > 0 for e in logged(made))


def test_it_draws_while_the_model_is_trained(folder, tmp_path):
    """No batch ahead is drawn before the step beside it has its loss: were it not in a thread, both would wait."""
    steps = threading.Semaphore(0)
    made = built(folder, tmp_path, max_steps=4)

    def wait_for_a_step(call):
        if call >= 1:
            assert steps.acquire(timeout=120), "nothing was trained meanwhile"

    client(made).before = wait_for_a_step
    inner = made.compute_loss
    made.compute_loss = lambda *args, **more: (inner(*args, **more), steps.release())[0]
    made.train()
    assert len(client(made).calls) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 30},  # 12 prompts, one per step: past two epochs
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "max_steps": 9},
        {"guide": "none", "anchor_estimator": "k1-reward", "stop_strings": ["a"]},
        {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4},
    ],
    ids=["epochs", "a batch for several steps", "stop strings", "an evaluation between"],
)
def test_a_model_that_does_not_move_gets_the_same_batches(folder, tmp_path, options):
    runs = []
    for ahead in (True, False):
        made = built(folder, tmp_path / str(ahead), ahead=ahead, learning_rate=0.0, **options)
        made.train()
        runs.append(logged(made))
    assert runs[0] == runs[1]
    assert len({e.get("reward") for e in runs[0]}) > 1


def test_held_out_sampling_waits_for_what_is_drawn(folder, tmp_path, monkeypatch):
    """It keeps the random states and puts them back; a colocated engine draws from these."""
    made = built(folder, tmp_path, max_steps=3)
    client(made).before = lambda call: time.sleep(0.3)
    taken = []

    def state():
        taken.append(client(made).busy.locked())
        return lambda: None

    monkeypatch.setattr(callbacks, "random_state", state)
    made.add_callback(callbacks.HeldOutPassAtK(made, [*tiny.dataset(4)], tiny.hash_reward, every=1, n=2))
    made.train()
    assert taken == [False] * 4


CASES = {
    "aligned": {"max_steps": 16},  # into a second epoch
    "inside the rollout buffer": {
        "max_steps": 7, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_killed_it_goes_on_with_what_was_drawn(folder, tmp_path, case):
    options = server.OPTIONS | {"rollout_ahead": True, "guide": "branch"} | CASES[case]
    whole = run(folder, tmp_path / "whole", tmp_path / "whole.json", **options)
    assert whole.returncode == 0, whole.stderr
    die_at = options["max_steps"] - 3
    killed = run(folder, tmp_path / "cut", tmp_path / "cut.json", die_at=["step", die_at], **options)
    assert killed.returncode == -signal.SIGKILL
    assert load_state(tmp_path / "cut" / f"checkpoint-{die_at}", 0)["ahead"]["drawn"] is not None
    resumed = run(folder, tmp_path / "cut", tmp_path / "cut.json", resume=True, **options)
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(tmp_path / "cut.json") == metrics(tmp_path / "whole.json")


def test_two_processes_are_one(tmp_path):
    """The first asks the server for both, and each gets its own."""
    case = {"served": server.OPTIONS | {"rollout_ahead": True, "max_steps": 4, "learning_rate": 0.0}}
    one, two = (launch(n, tmp_path / str(n), json.loads(json.dumps(case)))["served"] for n in (1, 2))
    assert len(one["grads"]) == 4
    for mine, theirs in zip(one["grads"], two["grads"], strict=True):
        for name, grad in mine.items():
            torch.testing.assert_close(theirs[name], grad, rtol=1e-3, atol=1e-6)


def test_a_second_training_begins_anew(folder, tmp_path):
    made = built(folder, tmp_path, max_steps=3)
    made.train()
    made.ahead.begun, made.ahead.drawn = [[5]], None  # as if it had been cut short
    made.train()
    assert made.state.global_step == 3


def test_completions_for_other_prompts_are_refused(folder, tmp_path):
    made = built(folder, tmp_path)
    made.ahead.load_state_dict({"begun": [[5, 6]], "drawn": {}})
    with pytest.raises(UserError, match="resume with the data and the seed of that run, or with rollout_ahead=false"):
        made.ahead.answer(lambda prompts: [], [[5, 7]])


def test_more_than_text_in_one_turn_is_refused(folder, tmp_path):
    args = tiny.config(SAGEConfig, tmp_path, **server.OPTIONS | {"rollout_ahead": True})
    with pytest.raises(UserError, match="rollout_ahead is for text that is drawn in one turn"):
        SAGETrainer(folder, tiny.hash_reward, args, tiny.dataset(), rollout_func=tiny.given_rollouts)
