"""``trainer.v1.trainer_mode=sage_sync``: verl's synchronous V1 trainer whose reference is q·π_ref. Runs on the driver.

verl's step computes old_log_probs and entropies, then ref_log_prob, then advantages, then updates the actor. Right after the
reference pass we put ref + log q in the place of ref_log_prob: verl's KL loss and its KL in the reward both read it there. Where
the guide must see the current policy, or the estimator is not one of verl's, the workers get our loss instead (loss.py). With
``algorithm.adv_estimator=sage`` the advantages are those of our room (estimator.py).
"""

import logging
import os
import time
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.padding import response_to_nested

from sage_rlvr.advantage import Advantage
from sage_rlvr.anchor import noise
from sage_rlvr.errors import UserError
from sage_rlvr.integrations.verl import ESTIMATOR, MODE, OLDER, estimator, loss, refuse_unread_options, shape
from sage_rlvr.integrations.verl.options import read_options

logger = logging.getLogger(__name__)
STATE = "sage.pt"  # beside verl's data.pt in a checkpoint


class SageTrainer(PPOTrainerSync):
    """verl's PPOTrainerSync with a shaped anchor. With ``sage.guide=none`` it is PPOTrainerSync."""

    def __init__(self, config: Any):
        self.sage = read_options(config)
        self.guide = self.sage.make_guide()
        self.advantage = self.sage.make_advantage()
        self.beta = OmegaConf.select(config, self.sage.coefficient)
        self._prompt_number: dict[str, int] = {}  # uid → its number in this rollout batch
        self._shaped_step: int | None = None
        self._ref_means: dict[str, torch.Tensor] = {}  # key → mean log π_ref per token, before the guide
        if self.advantage is None and config.algorithm.adv_estimator == ESTIMATOR:
            with open_dict(config):
                config.algorithm.adv_estimator = "grpo"  # verl's own, by verl's own path
        actor = config.actor_rollout_ref.actor
        self._entropy_asked = bool(actor.calculate_entropy or actor.entropy_coeff != 0)
        if self.guide is not None and not self.sage.hold and "entropies" in self.guide.needs:
            with open_dict(config):
                actor.calculate_entropy = True  # the guide looks at the policy inside the update
        super().__init__(config)
        self._say()

    # verl asks for the mode by name in six places, and any name but "sync" means asynchronous: the replay buffer, the
    # dataloader, the checkpoints. This trainer is the synchronous one, whatever it is registered as.
    @property
    def trainer_mode(self) -> str:
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, name: str) -> None:
        if name != MODE:
            raise UserError(f"trainer.v1.trainer_mode={name} reached the trainer of {MODE}: set trainer_mode={MODE}.")

    def _say(self) -> None:
        o, advantage = self.sage, repr(self.advantage) if self.advantage is not None else None
        if o.seam == "none":
            line = f"sage.guide=none: {advantage or 'verl as it is'}, nothing is shaped"
        else:
            line = (
                f"{self.guide!r}, estimator {o.estimator}, beta={self.beta}, {o.seam} seam, hold={o.hold}, center={o.center}, "
                f"seed={o.seed}" + (f", {advantage}" if advantage else "")
            )
        print(f"sage: {line}", flush=True)  # verl's logging may be set to WARNING; this line must be seen

    # ---- the loss seam ---------------------------------------------------------------------------------------------

    def _setup(self) -> None:
        super()._setup()
        if self.sage.seam == "loss":
            config = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
            self.actor_rollout_wg.set_loss_fn(loss.SageLoss(config, self.sage, self._entropy_asked))

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's update. Stops the run if what it is about to train on, or has trained on, was not shaped."""
        if self.guide is not None and self._shaped_step != self.global_steps:
            raise RuntimeError(
                f"sage: step {self.global_steps} reached the update unshaped; is the reference pass skipped?"
            )
        if self.sage.seam == "loss" and not self.sage.hold:
            step, max_steps = self._optimizer_steps()
            batch.extra_info |= {loss.KEY: self._key(), loss.STEP: step, loss.MAX_STEPS: max_steps}
        batch = super()._update_actor(batch, metrics)
        if self.sage.seam == "loss" and "actor/sage/kl_ref" not in metrics:
            raise RuntimeError("sage: the workers trained without our loss; was it replaced after init_model?")
        return batch

    # ---- the driver seam -------------------------------------------------------------------------------------------

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_ref_log_prob(batch, metrics)
        if self.advantage is not None and "ref_logps" in self.advantage.needs:
            wide = self._get(batch, ["response_mask", "ref_log_prob"]).to_padded_tensor()
            means = estimator.mean_per_token(wide["ref_log_prob"], wide["response_mask"])
            self._ref_means = dict(zip(batch.keys, means, strict=True))
        if self.guide is not None:
            start = time.perf_counter()
            self._shape(batch, metrics)
            metrics["timing_s/sage"] = time.perf_counter() - start
            self._shaped_step = self.global_steps
        return batch

    def _shape(self, batch: Any, metrics: dict[str, Any]) -> None:
        """log q into TransferQueue: inside ref_log_prob, or beside it for our loss; row numbers where the workers draw noise."""
        guide = self.guide
        assert guide is not None
        if not self.sage.hold:
            if guide.stochastic:
                self._put(batch, {loss.ROWS: self._rows(batch)})
            return
        wanted = {"entropies": "entropy", "rewards": "rm_scores"}
        fields = ["response_mask", "old_log_probs", "ref_log_prob", *(wanted[x] for x in wanted if x in guide.needs)]
        data = self._get(batch, fields)
        lengths = data["response_mask"]  # nested (B, j)
        wide = data.to_padded_tensor()  # (B, T)
        old, ref, mask = wide["old_log_probs"].float(), wide["ref_log_prob"].float(), wide["response_mask"]
        step, max_steps = self._optimizer_steps()
        log_q = shape.log_q(
            guide, old, ref, mask, wide.get("entropy", None), self._rows(batch) if guide.stochastic else None,
            seed=self._key(), step=step, max_steps=max_steps, center=self.sage.center,
            rewards=wide["rm_scores"].float().sum(1) if "rewards" in guide.needs else None,
        )  # fmt: skip
        name, value = (loss.LOG_Q, log_q) if self.sage.seam == "loss" else ("ref_log_prob", ref + log_q)
        self._put(batch, {name: response_to_nested(value, lengths)})
        metrics |= shape.measure(old, ref, log_q, mask, self.sage.estimator)

    def _get(self, batch: Any, fields: list[str]) -> TensorDict:
        return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)

    def _put(self, batch: Any, fields: dict[str, torch.Tensor]) -> None:
        data = TensorDict(fields, batch_size=len(batch))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=data)

    def _key(self) -> int:
        return noise.batch_seed(self.sage.seed, self.global_steps - 1)

    def _optimizer_steps(self) -> tuple[int, int]:
        """(optimizer steps taken before this rollout batch, and in the whole run): verl counts rollout batches."""
        actor = self.config.actor_rollout_ref.actor
        updates = max(1, self.config.data.train_batch_size // actor.ppo_mini_batch_size) * actor.ppo_epochs
        return (self.global_steps - 1) * updates, self.total_training_steps * updates

    # ---- the advantage seam ----------------------------------------------------------------------------------------

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's, which asks the estimator that ``algorithm.adv_estimator`` names; ours is told here what verl does not pass."""
        if self.advantage is None:
            return super()._compute_advantage(batch, metrics)
        with estimator.told(self._told(self.advantage, batch)) as ours:
            batch = super()._compute_advantage(batch, metrics)
        if not ours.used:
            raise RuntimeError(f"sage: verl made the advantages of step {self.global_steps} without sage.advantage.")
        return batch

    def _told(self, advantage: Advantage, batch: Any) -> estimator.Told:
        step, max_steps = self._optimizer_steps()
        out = estimator.Told(advantage, batch.keys, step, max_steps)
        read = {
            "rm_scores": self.config.algorithm.use_kl_in_reward,
            "old_log_probs": "logps" in advantage.needs,
            "response_mask": bool({"logps", "lengths"} & advantage.needs),
        }
        if any(read.values()):
            wide = self._get(batch, [name for name in read if read[name]]).to_padded_tensor()
            if read["rm_scores"]:
                out.scores = wide["rm_scores"].sum(-1)
            if read["old_log_probs"]:
                out.logps = estimator.mean_per_token(wide["old_log_probs"], wide["response_mask"])
            if "lengths" in advantage.needs:
                out.lengths = wide["response_mask"].bool().sum(1).float()
        if "ref_logps" in advantage.needs:
            out.ref_logps = torch.stack([self._ref_means[key] for key in batch.keys])
        if "answers" in advantage.needs:
            assert self.sage.answer is not None, "the options ask for it"
            out.answers = estimator.answers_of(
                list(self._get(batch, ["extra_fields"])["extra_fields"]), self.sage.answer
            )
        return out

    # ---- rows ------------------------------------------------------------------------------------------------------

    def prepare_step(self) -> dict[str, Any]:
        self._prompt_number.clear()
        return super().prepare_step()

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        batch = super()._next_train_batch(num_prompts)
        for uid in batch["uid"]:
            self._prompt_number[str(uid)] = len(self._prompt_number)
        return batch

    def _rows(self, batch: Any) -> torch.Tensor:
        return shape.row_numbers(batch.keys, self._prompt_number, self.config.actor_rollout_ref.rollout.n)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _anchor(self) -> dict[str, Any]:
        """What is trained toward, by the fields that say so, the guide's arguments aside: they are in its own state."""
        o = self.sage
        return {
            "sage.guide": o.guide,
            "sage.estimator": o.estimator if o.own_loss else f"verl's {o.estimator}",
            o.coefficient: self.beta,
            "sage.hold": o.hold,
            "sage.center": o.center,
            "sage.seed": o.seed,
            "sage.advantage": "none" if self.advantage is None else repr(self.advantage),
            "actor_rollout_ref.model.path": self.config.actor_rollout_ref.model.path,  # π_ref
        }

    @property
    def _is_plain(self) -> bool:
        return self.sage.seam == "none" and self.advantage is None

    def _save_checkpoint(self) -> None:
        if not self._is_plain:  # before verl's own, whose last act says that the checkpoint is whole
            folder = os.path.join(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}")
            os.makedirs(folder, exist_ok=True)
            guide = self.guide.state_dict() if self.guide is not None else None
            torch.save({"anchor": self._anchor(), "guide": guide}, os.path.join(folder, STATE))
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps == 0:
            return
        trainer = self.config.trainer
        by_path = trainer.resume_mode == "resume_path"
        latest = os.path.abspath(trainer.default_local_dir)
        folder = trainer.resume_from_path if by_path else find_latest_ckpt_path(latest)
        file = os.path.join(folder, STATE)
        if os.path.exists(file):
            self._go_on(folder, torch.load(file, weights_only=True))
        elif not self._is_plain:
            print(
                f"sage: {folder} holds no {STATE}: it was trained by verl as it is, and goes on with sage.", flush=True
            )

    def _go_on(self, folder: str, state: dict[str, Any]) -> None:
        """Takes the guide's state; refuses another anchor than the checkpoint's, naming the field that differs."""
        for name, value in self._anchor().items():
            saved = state["anchor"].get(name, value)
            if saved != value:
                raise UserError(
                    f"{folder} was trained with {name}={saved} and this run has {value}: resume with the saved value, or start a "
                    "new run from its weights."
                )
        if self.guide is not None:
            self.guide.load_state_dict(state["guide"])


def _unread(trainer: Any, config: Any) -> str | None:
    if isinstance(trainer, SageTrainer):
        return None
    mode = config.trainer.v1.trainer_mode
    return f"trainer.v1.trainer_mode={mode} does not read it{OLDER if 'async' in mode else ''}: set trainer_mode={MODE}"


register_trainer(MODE)(SageTrainer)
refuse_unread_options(PPOTrainer, _unread)
