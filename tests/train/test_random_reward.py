"""The control that pays by chance: at its rate, blind to what is right, the same after a resume; all else judges for real."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest

from sage_rlvr import UserError, cli
from sage_rlvr.launch import data, run
from sage_rlvr.launch.random_reward import RandomReward
from sage_rlvr.tasks import task_reward

from . import tiny

N = 6000


def half_right(completions, **columns):
    return [float(c[-1] in "13579") for c in completions]


def drawn(chance=0.5, seed=0, step=0, prompts=None, completions=None, judge=half_right):
    prompts = prompts or [f"p{i // 8}" for i in range(N)]
    completions = completions or [f"c{i}" for i in range(N)]
    return RandomReward(judge, chance, seed)(prompts, completions, trainer_state=SimpleNamespace(global_step=step))


def within(values, chance, sigmas=4.0):
    """The mean is what a fair draw of that chance may give."""
    return abs(sum(values) / len(values) - chance) < sigmas * math.sqrt(chance * (1 - chance) / len(values))


@pytest.mark.parametrize("chance", [0.5, 0.1])
def test_the_rate_is_the_one_asked_for_among_right_and_wrong_alike(chance):
    rewards = drawn(chance)
    assert set(rewards) == {0.0, 1.0}
    right = half_right([f"c{i}" for i in range(N)])
    assert within(rewards, chance)
    assert within([x for x, good in zip(rewards, right) if good], chance)
    assert within([x for x, good in zip(rewards, right) if not good], chance)


def test_every_part_of_the_key_draws_anew():
    """Of two keys that differ in one part, half of the draws agree; even the same answer of a group is not paid alike."""
    same = [x == y for x, y in zip(drawn(), drawn())]
    assert all(same)
    same_text = drawn(prompts=["p"] * N, completions=["c1"] * N)
    assert within(same_text, 0.5), "only the row differs"
    for other in (drawn(seed=1), drawn(step=1), drawn(prompts=["q"] * N), drawn(completions=["c1"] * N)):
        assert within([float(x == y) for x, y in zip(drawn(), other)], 0.5)


def test_what_cannot_be_judged_stays_so_and_the_truth_is_logged():
    logged = {}
    reward = RandomReward(lambda **columns: [None, 1.0, 1.0, 0.0])
    got = reward(["p"] * 4, ["a", "b", "c", "d"], log_metric=logged.__setitem__)
    assert got[0] is None
    assert None not in got[1:]
    assert logged == {"sage/true_reward": pytest.approx(2 / 3)}


def test_answers_are_read_as_the_judge_reads_them():
    judge = task_reward("countdown-ltr", "plain")
    reward = RandomReward(judge)
    assert reward.key("1+2*3") == judge.key("1+2*3") == "1+2*3"
    assert reward.extract("so\n1+2") == "1+2"
    assert reward.built_in
    assert reward.__name__ == "random_reward"
    assert not hasattr(RandomReward(half_right), "key")


@pytest.mark.parametrize("chance", [0.0, 1.0, -0.5, 2.0, float("nan"), True])
def test_a_chance_that_is_none_is_one_sentence(chance):
    with pytest.raises(
        UserError,
        match=r"random_reward(=.* is the chance of a reward of 1: set it above 0| must be a (finite )?number)",
    ):
        run.RunArguments(random_reward=chance)


def history(trainer):
    wanted = ("step", "reward", "sage/true_reward", "loss", "rewards/random_reward/mean")
    return [{k: h[k] for k in wanted} for h in trainer.state.log_history if "reward" in h]


def test_a_resumed_run_is_paid_what_an_unbroken_one_is(folder, tmp_path):
    options = {"given": False, "reward": RandomReward(tiny.hash_reward, 0.5, 7), "max_steps": 4}
    options |= {"save_strategy": "steps", "save_steps": 2}
    whole = tiny.build(folder, tmp_path / "whole", **options)
    whole.train()
    (tmp_path / "again").mkdir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "again" / "checkpoint-2")
    again = tiny.build(folder, tmp_path / "again", **options)
    again.train(resume_from_checkpoint=True)
    assert len(history(whole)) == 4
    assert history(again) == history(whole)
    assert any(h["reward"] != h["sage/true_reward"] for h in history(whole))


def test_training_is_paid_by_chance_and_held_out_problems_are_judged(tmp_path, monkeypatch, capsys):
    """Where everything is right, training is paid half of it, and the log and the held-out curve say all of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def all_right(completions, **columns):
        return [1.0] * len(completions)

    monkeypatch.setattr(data, "task_reward", lambda *args, **more: all_right)
    recipe = {
        "model_name_or_path": tiny.folder(tmp_path / "base"), "task": "countdown-ltr", "rows": 8, "decontaminate": False,
        "random_reward": 0.5, "max_steps": 4, "per_device_train_batch_size": 8, "num_generations": 4, "output_dir": "out",
        "max_completion_length": 8, "use_cpu": True, "bf16": False, "report_to": "none", "logging_steps": 1, "guide": "none",
        "gradient_checkpointing": False, "disable_tqdm": True, "prompt_format": "plain", "save_strategy": "no",
        "held_out": ["countdown-ltr"], "held_out_every": 4, "held_out_n": 2, "held_out_rows": 2,
    }  # fmt: skip
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    assert cli.main(["train", "--config", "r.yaml"]) == 0
    assert "paid 1 with chance 0.5" in capsys.readouterr().out
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "reward" in entry]
    assert [entry["sage/true_reward"] for entry in steps] == [1.0] * 4
    assert 0 < sum(entry["reward"] for entry in steps) / 4 < 1
    assert [entry["held_out/countdown-ltr/pass@1"] for entry in log if "held_out/countdown-ltr/pass@1" in entry] == [
        1,
        1,
    ]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["settings"]["random_reward"] == 0.5
