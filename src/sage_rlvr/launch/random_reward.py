"""A control: training is paid by chance, and the true verdict is only logged. What such a run gains, no reward has taught."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from accelerate import PartialState

from sage_rlvr.errors import UserError
from sage_rlvr.tasks.scorers import completion_text


def check_chance(chance: float) -> float:
    if not 0 < chance < 1:
        raise UserError(
            f"random_reward={chance} is the chance of a reward of 1: set it above 0 and below 1, such as 0.5, or leave it out."
        )
    return chance


class RandomReward:
    """``judge``'s place taken by chance: 1.0 with probability ``chance``, else 0.0; None where the judge says None.

    Each draw is a function of the seed, the step, the row's place in the whole batch, the prompt and the completion: resumed,
    or on another number of processes, a run is paid the same; and two equal completions of a group are drawn apart, so that
    nothing can be learned from it. The judge is asked all the same, for the log: ``sage/true_reward``.
    """

    __name__ = "random_reward"

    def __init__(self, judge: Any, chance: float = 0.5, seed: int = 0):
        self.judge, self.chance, self.seed = judge, check_chance(chance), seed

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], trainer_state: Any = None, **columns: Any
    ) -> list[float | None]:
        verdicts = self.judge(prompts=prompts, completions=completions, trainer_state=trainer_state, **columns)
        judged = [float(v) for v in verdicts if v is not None]
        if (log := columns.get("log_metric")) is not None and judged:
            log("sage/true_reward", sum(judged) / len(judged))
        step = trainer_state.global_step if trainer_state is not None else 0
        first = PartialState().process_index * len(prompts)
        return [
            None if verdict is None else float(self._draw(step, row, prompt, completion) < self.chance)
            for row, (verdict, prompt, completion) in enumerate(zip(verdicts, prompts, completions), start=first)
        ]

    def _draw(self, step: int, row: int, prompt: Any, completion: Any) -> float:
        """In [0, 1), evenly."""
        what = json.dumps([self.seed, step, row, prompt, completion_text(completion)], default=str)
        return int.from_bytes(hashlib.sha256(what.encode()).digest()[:6], "big") / 2**48

    def __getattr__(self, name: str) -> Any:
        """How an answer is read, which solutions are the same, whose fault an error is: as the judge says."""
        if name == "judge":  # not there yet: it is being unpickled
            raise AttributeError(name)
        return getattr(self.judge, name)
