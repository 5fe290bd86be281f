"""verl 0.9.1 in its own venv (make test-verl). One Ray for the session; the CPU stands in for the accelerator."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENV = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
    "VERL_ENGINE_DEVICE": "cuda",  # the FSDP engine is registered for CUDA; cpu_platform says where its tensors live
    "VERL_LOGGING_LEVEL": "WARNING",
    "TQ_LOGGING_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
    "PYTHONPATH": str(HERE),
    "RAY_DEDUP_LOGS": "1",
}
os.environ.update(ENV)  # before verl is imported anywhere
sys.path.insert(0, str(HERE))

import pytest  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """make(*overrides, mode=…) → verl's config for a model of two layers."""
    import world

    folder = tmp_path_factory.mktemp("toy")
    model, data = world.make_model(folder / "model"), world.make_data(folder / "data.parquet")
    base = world.make_config(model, data, folder / "out")  # by Hydra, as verl does it, once: it takes a second
    OmegaConf.set_struct(base, False)

    def make(*overrides: str, mode: str = "sage_sync"):
        more = [o.removeprefix("+") for o in (*overrides, f"trainer.v1.trainer_mode={mode}")]
        return OmegaConf.merge(base, OmegaConf.from_dotlist(more))

    return make


@pytest.fixture(scope="session")
def cluster(toy):
    """Real Ray and TransferQueue, one node: Ray's own test cluster, to which test_nodes.py adds another. Ray is told of GPUs, so
    that verl's placement groups are used as they are."""
    import ray
    import transfer_queue as tq
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 16, "num_gpus": 8, "include_dashboard": False, "object_store_memory": 256 * 2**20,
        },
    )  # fmt: skip
    ray.init(address=nodes.address, log_to_driver=False, runtime_env={"env_vars": ENV})
    tq.init(toy("+sage.guide=none").transfer_queue)
    yield nodes
    tq.close()
    ray.shutdown()
    nodes.shutdown()
