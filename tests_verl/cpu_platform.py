"""verl knows CUDA, NPU and ROCm. This teaches it the CPU, through its own platform interface, for tests alone: every process
loads it by VERL_USE_EXTERNAL_MODULES. What runs on it is verl's own code; collectives go over gloo."""

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_base import PlatformBase

nothing = lambda *args, **kwargs: None  # noqa: E731


def _zero(*args, **kwargs):
    return 0


MODULE = SimpleNamespace(
    **dict.fromkeys(
        ("empty_cache", "set_device", "synchronize", "manual_seed", "manual_seed_all", "ipc_collect"), nothing
    ),
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"), _zero),
    mem_get_info=lambda *a: (1 << 33, 1 << 33),
    current_device=lambda: "cpu",
    device_count=lambda: 1,
    is_available=lambda: True,
    get_device_name=lambda *a: "cpu",
    Event=torch.cpu.Stream,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
)


class PlatformCPU(PlatformBase):
    device_name, vendor_name, device_module = "cpu", "cpu", MODULE
    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = nothing

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def ray_resource_name(self):
        return "GPU"  # Ray is told of GPUs that are not there, so that verl's resource pools stay as they are

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self):
        return False


set_platform(PlatformCPU())

_init = torch.distributed.init_process_group


def _one_backend(backend=None, *args, **kwargs):
    """verl asks for "cpu:gloo,<device>:<backend>", which names the CPU twice here."""
    return _init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


torch.distributed.init_process_group = _one_backend
torch.Tensor.pin_memory = lambda self, *args: (
    self
)  # the reference is offloaded to pinned memory; there is none to pin here
