"""Loaded by every process of verl beside cpu_platform (VERL_USE_EXTERNAL_MODULES): in place of the LLM servers, which need a GPU,
a client that draws tokens at random. Agent loops, chat template, rewards, trainer and workers are verl's own."""

import asyncio
import random
import sys
from types import SimpleNamespace

from sage_rlvr.integrations.verl import AfterImport

ANSWERS = range(258, 266)  # token ids of the answers of eight problems, one of which is the right one


class Client:
    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        from verl.workers.rollout.replica import TokenOutput

        ids = [*random.choices(ANSWERS, k=random.randrange(1, 4)), 1]
        steps = {"min_global_steps": 0, "max_global_steps": 0}  # the weights it sampled with
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed", extra_fields=steps)


def take_the_servers_place():
    from verl.checkpoint_engine import CheckpointEngineManager
    from verl.trainer.ppo.v1.trainer_base import LLMServerManager, PPOTrainer

    LLMServerManager.rollout_replica_class = None
    LLMServerManager._init_global_load_balancer = lambda self: asyncio.sleep(0)
    CheckpointEngineManager.update_weights = lambda *_, **__: {}
    PPOTrainer._enable_hybrid_replicas = False
    PPOTrainer.get_llm_client = lambda self: Client()


# verl asks vLLM, before it starts, whether it takes an adapter of that rank
sys.modules["verl.workers.rollout.vllm_rollout.utils"] = SimpleNamespace(get_vllm_max_lora_rank=lambda rank: rank)
sys.meta_path.insert(0, AfterImport("verl.trainer.ppo.v1.trainer_base", take_the_servers_place))
