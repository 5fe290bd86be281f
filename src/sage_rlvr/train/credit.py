"""From rewards to advantages, for a whole rollout batch: what a completion is credited with.

Every process sees all W·B rows, computes the same and keeps its own (dimensions: trainer.py). Rewards stay as they were judged:
what is logged, and what a guide gets, are plain rewards.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from sage_rlvr.advantage import GroupAdvantage
from sage_rlvr.anchor import anchor_reward
from sage_rlvr.tasks.scorers import completion_text, solution_key
from sage_rlvr.train import measure, rollouts
from sage_rlvr.train.config import SAGEConfig
from sage_rlvr.verify import extract_answer

UNREADABLE = -1  # in place of an answer's number
NOTHING = 1e-6  # in float64: what rounding leaves of an advantage of 0 is far below it, what teaches is far above
# (B,) columns of a rollout batch that an advantage is made of: what it calls them
COLUMNS = {
    "sage_rewards": "rewards",
    "sage_mean_logps": "logps",
    "sage_mean_ref_logps": "ref_logps",
    "sage_lengths": "lengths",
    "sage_answers": "answers",
}


class Credit:
    """The configured advantage over a trainer's rollout batches, and the k1 reward on top of it."""

    def __init__(self, trainer: Any, args: SAGEConfig):
        self.trainer, self.args = trainer, args
        self.advantage = args.make_advantage()
        self.tokens = self.advantage.token_part
        self.plain = type(self.advantage) is GroupAdvantage  # TRL has computed it: its tensor stays as it is
        self.rewards: Tensor | None = None  # (W·B,) of the batch that was judged last
        self._answers: list[str | None] = []  # its answers, where the advantage reads them
        self._numbers: dict[int, str] = {}  # number → answer: tensors are what ranks and groups exchange

    @property
    def group(self) -> int:
        training = self.trainer.model.training
        return self.trainer.num_generations if training else self.trainer.num_generations_eval

    # ---- rewards ---------------------------------------------------------------------------------------------------

    def judged(self, per_func: Tensor, completions: Sequence[Any]) -> None:
        """Keeps the rewards, (W·B,) of all functions' (W·B, functions), NaN where nobody could judge, and logs how they lie."""
        trainer = self.trainer
        rewards = (per_func * trainer.reward_weights.to(per_func.device)).nansum(1)
        rewards[per_func.isnan().all(1)] = torch.nan
        if "rewards" in trainer.guide_needs:
            trainer.guide.check_rewards(rewards)
        self.rewards = rewards
        texts, first = [completion_text(c) for c in completions], next(iter(trainer.reward_funcs), None)
        extract = getattr(first, "extract", extract_answer)
        answers = gather_object([extract(text) for text in texts])
        if "answers" in self.advantage.needs:
            self._answers = gather_object([solution_key(first, text) for text in texts])
        flat, distinct = rollouts.flat_groups(rewards, self.group), measure.distinct_per_group(answers, self.group)
        trainer.log_values({"sage/zero_variance_groups": flat.float().mean().item(), "sage/distinct_answers": distinct})

    # ---- advantages ------------------------------------------------------------------------------------------------

    def settle(self, output: dict[str, Any]) -> None:
        """The advantages of a batch as it was rolled out, and the columns they are made of."""
        assert self.rewards is not None, "rewards are judged first"
        output["sage_rewards"] = self.rewards[output["sage_rows"]]
        if self.plain:
            return
        needs, mask = self.advantage.needs, rollouts.counted(output)
        output["sage_lengths"] = mask.sum(1)
        if "logps" in needs:
            output["sage_mean_logps"] = mean_logps(self.trainer.sampled(output)[0], mask)
        if "ref_logps" in needs:
            output["sage_mean_ref_logps"] = mean_logps(output["ref_per_token_logps"], mask)
        if "answers" in needs:
            numbers = torch.tensor([self._number(a) for a in self._answers], device=mask.device)
            output["sage_answers"] = numbers[output["sage_rows"]]
        everyone = self.assign(output)
        log = self.trainer._logs["advantages"]  # TRL's table of completions has its own
        for _ in range(min(len(log), len(everyone))):
            log.pop()
        log.extend(everyone.tolist())

    def assign(self, output: dict[str, Any]) -> Tensor:
        """Puts the advantages in, this process' rows of all; answers all, (W·B,)."""
        gather = self.trainer.accelerator.gather
        everyone = self.of({name: gather(output[name]) for name in COLUMNS if name in output})
        output["advantages"] = everyone[output["sage_rows"]]
        return everyone

    def of(self, batch: dict[str, Tensor], dtype: torch.dtype | None = None) -> Tensor:
        """(W·B,) from the columns of all rows; ``dtype`` to compute in another than the rewards'."""
        given: dict[str, Any] = {COLUMNS[name]: batch[name] for name in COLUMNS if name in batch}
        if dtype is not None:
            given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in given.items()}
        if "answers" in given:
            given["answers"] = [self._numbers.get(number) for number in given["answers"].tolist()]
        state = self.trainer.state
        clock = {"step": state.global_step, "max_steps": max(state.max_steps, 1)}
        return self.advantage(group=self.group, scale=self.args.scale_rewards, **given, **clock)

    def flat(self, batch: dict[str, Tensor]) -> Tensor:
        """(groups,) True where a group teaches nothing, so that dynamic sampling draws another in its place: equal rewards under
        GRPO's own advantage, and under any other advantages of 0 on every completion that has a counted token."""
        if self.plain:
            return rollouts.flat_groups(batch["sage_rewards"], self.group)
        pushed = self.of(batch, torch.float64).abs() * (batch["sage_lengths"] > 0)
        return (pushed.view(-1, self.group) <= NOTHING).all(1)

    def exchanged(self, output: dict[str, Any]) -> None:
        """After groups were drawn again: the advantages are those of the batch as it stands."""
        if not self.plain:
            self.assign(output)

    def clear(self, output: dict[str, Any]) -> None:
        """Takes out what has served: a buffered batch keeps what its updates need."""
        self._numbers.clear()
        for name in {*COLUMNS, "sage_logps", "sage_entropies", "sage_hidden"} & output.keys():
            if name != "sage_rewards" or "rewards" not in self.trainer.guide_needs:
                output.pop(name)

    def _number(self, answer: str | None) -> int:
        """The same on every process and in every round."""
        if answer is None:
            return UNREADABLE
        number = int.from_bytes(blake2b(repr(answer).encode(), digest_size=7).digest(), "big")
        self._numbers[number] = answer
        return number

    # ---- the k1 reward ---------------------------------------------------------------------------------------------

    def add_bonus(self, output: dict[str, Any], logps: Tensor, log_q: Tensor, mask: Tensor) -> None:
        """A += β·(bonus − its group's mean, across ranks), for rows that can be scored and count. Everything here is (B, K): with
        anchor_credit "sequence" K = 1 and the advantages stay (B,); with "to_go" K = T and they become (B, T)."""
        trainer, accelerator, group = self.trainer, self.trainer.accelerator, self.group
        to_go = self.args.anchor_credit == "to_go"
        bonus = anchor_reward(logps, output["ref_per_token_logps"], log_q, mask, self.args.anchor_credit)
        bonus_BK = bonus if to_go else bonus[:, None]
        counts_B1 = (~output["sage_rewards"].isnan() & (mask.sum(1) > 0))[:, None]
        everyone = rollouts.gather_wide({"bonus": bonus_BK, "counts": counts_B1.to(bonus.dtype)}, accelerator)
        all_bonus, weight = (x.view(-1, group, x.shape[1]) for x in everyone.values())  # (groups, G, K), (groups, G, 1)
        mean = (all_bonus * weight).sum(1) / weight.sum(1).clamp(min=1)
        mean_BK = mean.repeat_interleave(group, 0)[output["sage_rows"], : bonus_BK.shape[1]]
        if to_go:
            mean_BK = mean_BK * mask
        scaled = trainer.beta * (bonus_BK - mean_BK) * counts_B1
        task = output["advantages"]  # (B,)
        output["advantages"] = task[:, None] + scaled if to_go else task + scaled[:, 0]
        trainer.log_values(measure.bonus(task, scaled[:, 0], mask, accelerator))  # to go of the first token: the whole


def mean_logps(logps: Tensor, mask: Tensor) -> Tensor:
    """(B,) a completion's mean log-prob per counted token; NaN where none counts: it was cut off, and the pass saw none of it."""
    on = mask.bool()
    mean = torch.where(on, logps.float(), 0.0).sum(1) / on.sum(1).clamp(min=1)
    return mean.where(on.any(1), torch.nan)
