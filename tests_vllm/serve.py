"""``vllm serve`` on a CPU (python -m tests_vllm.serve --model …), and TRL's client of it. Weights travel by a file in place
of NCCL, which needs GPUs: a transfer engine registered as vLLM lets anybody. All else is the real server and the real client."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from trl.generation.vllm_client import VLLMClient
from vllm import _custom_ops
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

_custom_ops._supports_onednn = False  # as in conftest.py
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
FLAGS = [
    "--weight-transfer-config", '{"backend": "file"}', "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1",
    "--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(2**27), "--max-model-len", "128",
]  # fmt: skip


@dataclass
class Nothing:
    pass


@dataclass
class Update:
    path: str


class FileEngine(WeightTransferEngine):
    init_info_cls, update_info_cls = Nothing, Update

    def init_transfer_engine(self, init_info):
        pass

    def start_weight_update(self):
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self):
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info):  # without waiting for an accelerator
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info):
        self.model.load_weights(load_file(update_info.path).items())

    def shutdown(self):
        pass


WeightTransferEngineFactory.register_engine("file", FileEngine)  # in the engine's process too: it imports this


class Client(VLLMClient):
    def init_communicator(self, device=None):
        assert self.get_server_info()["weight_transfer_config"] == {"backend": "file"}
        assert self.get_world_size() == 1
        self._post(f"{self.base_url}/init_weight_transfer_engine", json={"init_info": {}})

    def update_named_params(self, metadata, named_params):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "weights.safetensors")
            save_file({name: p.detach().contiguous().clone() for name, p in named_params}, file)
            self._start_weight_update()
            self._post(f"{self.base_url}/update_weights", json={"update_info": {"path": str(file)}})
            self._finish_weight_update()


if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main  # what vllm serve runs

    torch.set_num_threads(1)
    sys.argv += FLAGS
    main()
