"""A reward function of a user's that raises or blocks: a sentence that names it, a checkpoint, and a run that goes on."""

import asyncio
import contextlib
import json
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from sage_rlvr.errors import UserError
from sage_rlvr.runs.checkpoint import last_complete
from sage_rlvr.tasks import expressions, task_reward
from sage_rlvr.train import SAGEConfig, reward_guard

from .. import forked
from ..slow import but_few
from . import run_reward, tiny

FOREVER = 10_000  # seconds: longer than any test may take


class Breaks:
    """tiny.hash_reward, but ``how`` at the call numbered ``at``, and that one within ``limit`` seconds: it is the only one that
    a slow machine could keep from ending in time, and it never ends."""

    __name__ = "my_reward"

    def __init__(self, how, at=3, limit=None):
        self.how, self.at, self.limit, self.calls = how, at, limit, 0

    def count(self):
        self.calls += 1
        if self.limit is not None and self.calls == self.at - 1:
            self.trainer._guard.limit = self.limit
        return self.calls == self.at

    def __call__(self, completions, **columns):
        return self.how(completions) if self.count() else tiny.hash_reward(completions)


def raises(completions):
    raise LookupError("the judge is gone")


def sleeps(completions):
    time.sleep(FOREVER)


def waits_for_a_lock(completions):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def swallows_what_it_hears(completions):
    while True:
        with contextlib.suppress(Exception):
            time.sleep(FOREVER)


def swallows_even_more(completions):
    heard = 0
    while heard < 2:
        try:
            time.sleep(FOREVER)
        except BaseException:
            heard += 1
    time.sleep(FOREVER)


def stopped(folder, out, reward, **options):
    """The sentence of a run that its reward ends at its third step."""
    trainer = reward.trainer = tiny.build(folder, out, reward=reward, given=False, max_steps=5, **options)
    with pytest.raises(UserError) as error:
        trainer.train()
    assert trainer.reward_funcs == [reward], "as it was"
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL
    return error.value


def steps(trainer):
    clocks = {*tiny.TIMES, "train_runtime", "train_samples_per_second", "train_steps_per_second"}
    return [{k: v for k, v in e.items() if k not in clocks} for e in trainer.state.log_history if "loss" in e]


@pytest.mark.parametrize(
    ("at", "options"),
    but_few(
        [(3, {}), (2, {"logging_steps": 2}), (6, {"dynamic_sampling": 2}), (3, {"gradient_accumulation_steps": 2})],
        fast=[0],
    ),
)
def test_a_reward_that_raises_costs_nothing_but_its_step(folder, tmp_path, at, options):
    """Sampled, not given: the step that was cut short has drawn random numbers, and the resumed run must not know."""
    options = {"guide": "random", "guide_args": {"epsilon": 1.0}, **options}
    whole = tiny.build(folder, tmp_path / "whole", reward=Breaks(raises, at=0), given=False, max_steps=5, **options)
    whole.train()
    said = stopped(folder, tmp_path / "cut", Breaks(raises, at), **options)
    assert "the reward function 'my_reward' raised LookupError: the judge is gone (test_reward_guard.py, line" in str(
        said
    )
    assert "resume_from_checkpoint=True" in str(said)
    assert isinstance(said.__cause__, LookupError)
    checkpoint = last_complete(tmp_path / "cut")
    assert checkpoint is not None
    assert checkpoint in str(said)
    mended = tiny.build(folder, tmp_path / "cut", reward=Breaks(raises, at=0), given=False, max_steps=5, **options)
    mended.train(resume_from_checkpoint=True)
    for one, other in zip(steps(mended), steps(whole), strict=True):
        apart = {k for k, v in other.items() if repr(one.get(k)) != repr(v)}
        assert apart <= (
            {"loss"} if "logging_steps" in options else set()
        )  # transformers forgets an open window's loss
    for one, other in zip(mended.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("how", [sleeps, waits_for_a_lock, swallows_what_it_hears, swallows_even_more])
def test_a_reward_that_blocks_is_interrupted(folder, tmp_path, how):
    said = stopped(folder, tmp_path, Breaks(how, limit=0.5))
    assert "the reward function 'my_reward' took longer than reward_timeout_s=0.5 seconds" in str(said)
    assert last_complete(tmp_path) == str(tmp_path / "checkpoint-2")


class BreaksAsync(Breaks):
    async def __call__(self, completions, **columns):
        if self.count():
            await self.how(completions)
        return tiny.hash_reward(completions)


async def raises_async(completions):
    await asyncio.sleep(0)
    raise LookupError("the judge is gone")


async def awaits(completions):
    await asyncio.sleep(FOREVER)


async def blocks_its_loop(completions):
    while not _released.wait(0.05):
        pass


_released = threading.Event()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (raises_async, "raised LookupError"),
        (awaits, "seconds;"),
        (blocks_its_loop, "seconds and blocks its event loop;"),
    ],
)
def test_async_rewards(folder, tmp_path, how, words, monkeypatch):
    monkeypatch.setattr(reward_guard, "GRACE_S", 0.2)
    _released.clear()
    try:
        said = stopped(folder, tmp_path, BreaksAsync(how, limit=0.5))
    finally:
        _released.set()
    assert "'my_reward'" in str(said)
    assert words in str(said)
    assert last_complete(tmp_path) == str(tmp_path / "checkpoint-2")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([1.0], "returned 1 rewards for 4 completions: return one number per completion"),
        ([1.0, "high", 0, 0], "returned 'high' for completion 1 of 4: return a finite number, or None"),
        ([1.0, 0, "1", 0], "returned '1' for completion 2 of 4: return a finite number"),
        ([None, 0, 0, float("nan")], "returned nan for completion 3 of 4: return a finite number"),
        (None, "returned None: return a list of 4 numbers"),
        (0.5, "returned 0.5: return a list of 4 numbers"),
    ],
)
def test_an_answer_that_is_none(folder, tmp_path, answer, words):
    said = stopped(folder, tmp_path, Breaks(lambda completions: answer))
    assert f"the reward function 'my_reward' {words}" in str(said)


def test_what_there_is_is_said(folder, tmp_path):
    said = stopped(folder, tmp_path / "first", Breaks(raises, at=1))
    assert "nothing to save" in str(said)
    assert last_complete(tmp_path / "first") is None
    said = stopped(folder, tmp_path / "saved", Breaks(raises), save_strategy="steps", save_steps=2)
    assert f"{tmp_path / 'saved' / 'checkpoint-2'} has every finished step" in str(said)


def test_a_fault_of_our_own_keeps_its_traceback(folder, tmp_path, monkeypatch):
    """Whatever gets past the scorer's own guard is no sentence; the checkpoint is there all the same."""
    reward = task_reward("countdown", "plain")
    calls = []

    def breaks(*_):
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("ours")
        return [0.0] * 4

    monkeypatch.setattr(type(reward), "__call__", lambda self, completions, **columns: breaks())
    trainer = tiny.build(folder, tmp_path, reward=reward, max_steps=5)
    with pytest.raises(RuntimeError, match="ours"):
        trainer.train()
    assert last_complete(tmp_path) == str(tmp_path / "checkpoint-2")


def test_errors_of_a_scorer_are_logged_and_the_run_goes_on(folder, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(expressions, "tokens_of", lambda *_: [].pop())
    gold = json.dumps({"numbers": [1, 2], "target": 3})
    data = tiny.dataset().map(lambda row: {"answer": gold})
    trainer = tiny.build(folder, tmp_path, reward=task_reward("countdown", "plain"), data=data)
    trainer.train()
    assert [e["errors"] for e in trainer.state.log_history if "errors" in e] == [4.0, 4.0]
    assert caplog.text.count("scorer countdown raised IndexError") == 1


def test_all_ranks_stop_together(tmp_path):
    job = {"model": tiny.folder(tmp_path / "model"), "out": str(tmp_path)}
    forked.ranks(run_reward.main, job, processes=2)
    expected = {
        "raises": ("raised LookupError: the judge is gone", "LookupError"),
        "blocks": ("took longer than", "Overtime"),
    }
    for how, (words, cause) in expected.items():
        said = [(tmp_path / how / f"said-{rank}").read_text().split("\n") for rank in (0, 1)]
        assert said[0][0] == said[1][0]
        assert f"the reward function 'mine' {words}" in said[0][0]
        assert [own for _, own in said] == ["NoneType", cause], "the other rank only heard of it"
        checkpoint = last_complete(tmp_path / how)
        assert checkpoint == str(tmp_path / how / "checkpoint-2")
        assert {p.name for p in Path(checkpoint).glob("sage_state_*")} == {"sage_state_0.pt", "sage_state_1.pt"}


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_is_none(limit):
    with pytest.raises(UserError, match=r"reward_timeout_s must be (above 0|a finite number)"):
        SAGEConfig("x", use_cpu=True, bf16=False, reward_timeout_s=limit)


def test_no_limit_at_all():
    assert SAGEConfig("x", use_cpu=True, bf16=False, reward_timeout_s=None).reward_timeout_s is None
