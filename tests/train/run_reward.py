"""Two ranks, the reward of one of them breaks (tests/forked.py)."""

import os
import time
from pathlib import Path

from sage_rlvr.errors import UserError

from . import tiny


class OnOneRank:
    """Breaks in its third call, on rank 1 alone."""

    __name__ = "mine"

    def __init__(self, how):
        self.how, self.calls, self.breaks = how, 0, os.environ["RANK"] == "1"

    def __call__(self, completions, **columns):
        self.calls += 1
        if self.breaks and self.calls == 2:
            self.trainer._guard.limit = 1.0  # of the third call alone
        if self.breaks and self.calls == 3:
            if self.how == "raises":
                raise LookupError("the judge is gone")
            time.sleep(10_000)
        return tiny.hash_reward(completions)


def main(job):
    for how in ("raises", "blocks"):
        out, reward = Path(job["out"], how), OnOneRank(how)
        trainer = reward.trainer = tiny.build(job["model"], out, reward=reward, max_steps=4)
        try:
            trainer.train()
        except UserError as error:
            (out / f"said-{os.environ['RANK']}").write_text(f"{error}\n{type(error.__cause__).__name__}")
