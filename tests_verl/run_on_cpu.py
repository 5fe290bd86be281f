"""What SAGE_VERL_PYTHON names in test_study.py, called as python -m MODULE …: verl's Python, the CPU as its accelerator."""

import os
import runpy
import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
MORE = [
    "+ray_kwargs.ray_init.address=local",  # another test's cluster may still run
    "trainer.device=cpu", "+ray_kwargs.ray_init.num_gpus=1", "ray_kwargs.ray_init.num_cpus=16",
    "+ray_kwargs.ray_init.include_dashboard=False", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.agent.num_workers=1", "reward.num_workers=1",
    "data.dataloader_num_workers=0",
    "actor_rollout_ref.actor.use_torch_compile=False", "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "actor_rollout_ref.ref.use_torch_compile=False", "actor_rollout_ref.ref.fsdp_config.use_torch_compile=False",
]  # fmt: skip

if __name__ == "__main__":
    given = os.environ.get("PYTHONPATH")
    from conftest import ENV

    path = os.pathsep.join([ENV["PYTHONPATH"], *([given] if given else [])])
    os.environ.update(ENV, VERL_USE_EXTERNAL_MODULES="cpu_platform,stand_in", PYTHONPATH=path)
    _, dash_m, module, *words = sys.argv
    assert dash_m == "-m"
    sys.argv = [module, *words, *(MORE if module == "verl.trainer.main_ppo" else [])]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
