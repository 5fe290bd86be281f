"""What stands in for verl's LLM servers, which need a GPU: a real trainer on real Ray, TransferQueue and FSDP2 workers, fed
with completions drawn here. Everything from the replay buffer to the optimizer step is verl's."""

import asyncio
from types import SimpleNamespace

import numpy as np
import ray
import torch
import transfer_queue as tq
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.llm_server import LLMServerManager

LLMServerManager.rollout_replica_class = (
    None  # verl's own hook for another server class; none is started, nothing to balance
)
LLMServerManager._init_global_load_balancer = lambda self: asyncio.sleep(0)
trainer_base.RewardLoopManager = lambda **_: SimpleNamespace(
    reward_loop_worker_handles=[]
)  # rewards come with completions


class Rollouts:
    """In place of AgentLoopManagerTQ: the same keys, fields and tags, in an order of arrival that ``shuffle`` decides."""

    def __init__(self, trainer, per_prompt: int, shuffle: int):
        self.trainer, self.per_prompt, self.shuffle = trainer, per_prompt, np.random.default_rng(shuffle)

    def generate_sequences(self, batch):
        step, uids = self.trainer.global_steps, list(batch["uid"])
        made = [self._one(step, number, uid, s) for number, uid in enumerate(uids) for s in range(self.per_prompt)]
        for i in self.shuffle.permutation(len(made)):  # one by one: they finish when they finish
            key, field, tag = made[i]
            tq.kv_batch_put(keys=[key], partition_id="train", fields=list_of_dict_to_tensordict([field]), tags=[tag])
        done = {"is_prompt": True, "status": "finished", "global_steps": step}
        tq.kv_batch_put(keys=uids, partition_id="train", tags=[done] * len(uids))

    def _one(self, step, number, uid, session):
        rng = np.random.default_rng([step, number, session])  # the same completions in every run
        prompt = torch.tensor(rng.integers(3, 64, 5))
        response = torch.tensor(rng.integers(3, 64, int(rng.integers(3, 12))))
        ids, mask = torch.cat([prompt, response]), torch.ones_like(response)
        mask[1] = session % 2  # a token of a tool, inside the completion, that does not count
        score = torch.zeros(len(response))
        score[-1] = float(rng.integers(0, 2))
        field = {
            "prompts": prompt, "responses": response, "input_ids": ids, "position_ids": torch.arange(len(ids)),
            "response_mask": mask, "loss_mask": mask, "rm_scores": score, "rollout_log_probs": torch.zeros(len(response)),
            "uid": uid, "num_turns": 2, "multi_modal_inputs": {}, "extra_fields": {},
        }  # fmt: skip
        tag = {
            "status": "success", "prompt_len": 5, "response_len": len(response), "seq_len": len(ids),
            "global_steps": step, "min_global_steps": step, "max_global_steps": step,
        }  # fmt: skip
        return f"{uid}_{session}_0", field, tag


class Run:
    """A registered trainer, by its mode, through verl's own __init__, init and fit; what it logged and what it trained on."""

    def __init__(self, config, shuffle: int = 0, look=()):
        mode = get_trainer_cls(config.trainer.v1.trainer_mode)
        self.logged, self.seen = [], []
        run = self

        class Trainer(mode):
            _enable_hybrid_replicas = False  # as verl's separate_async: no server shares the workers

            def _setup(self):
                super()._setup()
                self.checkpoint_manager.update_weights = lambda *a, **k: None  # there is no server to send them to

            def _update_actor(self, batch, metrics):
                fields = ["response_mask", "old_log_probs", "ref_log_prob", "advantages", *look]
                data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
                run.seen.append((list(batch.keys), data.to_padded_tensor()))
                return super()._update_actor(batch, metrics)

            def _compute_metrics(self, batch, metrics, *args, **kwargs):
                super()._compute_metrics(batch, metrics, *args, **kwargs)
                run.logged.append(dict(metrics))

        self.trainer = Trainer(config)
        self.trainer.init()
        self.rollouts = Rollouts(self.trainer, config.actor_rollout_ref.rollout.n, shuffle)

    def fit(self):
        self.trainer.fit(self.rollouts)
        return self

    def close(self):
        """Gives the workers' place back: Ray ends the processes that live in it."""
        for pool in self.trainer.resource_pool_manager.resource_pool_dict.values():
            for group in pool.pgs or []:
                ray.util.remove_placement_group(group)
