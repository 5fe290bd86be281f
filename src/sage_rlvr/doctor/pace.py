"""How fast: a named GPU by its data sheet, or this machine by a probe of a second; then the time of a run, roughly.

Rates are what such a run reaches, not the peak: the shares below are the assumptions, and a run's first steps tell better.
"""

import time
from dataclasses import dataclass
from typing import Any

from sage_rlvr.doctor.activations import Weights, layers_of
from sage_rlvr.doctor.cards import find_card
from sage_rlvr.doctor.demand import Demand
from sage_rlvr.doctor.machine import memory
from sage_rlvr.doctor.memory import Memory

REACHED = 0.4  # of the data sheet's bf16 FLOP/s in training
STREAMED = 0.6  # of its bandwidth in decoding
PROBED = 0.6  # of a large matmul's rate, where the rate was measured
VLLM_STEP_S = 0.010  # a decoding step of vLLM, whatever the model (SmolLM2-135M, 256 rows, one H200)
LAYER_STEP_S = {"cuda": 0.001, "cpu": 0.0004}  # a layer of a decoding step of Transformers: launches, Python
LAYER_PASS_S = {"cuda": 0.013, "cpu": 0.002}  # a layer forward and backward with LoRA (0.40 s for 30 layers, one H200)
VLLM_ROWS = 256  # that vLLM decodes together


@dataclass(frozen=True)
class Device:
    name: str
    kind: str  # "cuda" or "cpu"
    memory: float  # bytes, all
    free: float  # bytes, for this run
    flops: float  # a second, reached
    bandwidth: float  # bytes a second, reached


def named_gpu(name: str) -> Device:
    card = find_card(name)
    return Device(card.title, "cuda", card.memory, card.memory, card.flops * REACHED, card.bandwidth * STREAMED)


def this_machine(use_cpu: bool, mixed: bool = True, seconds: float = 0.7) -> Device:
    """Its GPU where it has one, its CPU else; ``seconds`` of matmuls and half as much of copies."""
    import torch

    if torch.cuda.is_available() and not use_cpu:
        free, total = torch.cuda.mem_get_info()
        dtype = torch.bfloat16 if mixed else torch.float32
        flops, bandwidth = _probe("cuda", 8192, dtype, seconds)
        return Device(torch.cuda.get_device_name(), "cuda", total, free, flops, bandwidth)
    everything, left = memory()
    flops, bandwidth = _probe("cpu", 1024, torch.float32, seconds)
    return Device("this machine's CPU", "cpu", everything, left, flops, bandwidth)


def _probe(where: str, size: int, dtype: Any, seconds: float) -> tuple[float, float]:
    """(FLOP/s of matmuls, bytes/s of copies), reached."""
    import torch

    a = torch.rand(size, size, device=where, dtype=torch.float32).to(dtype)
    out = torch.empty_like(a)
    matmul = _rate(lambda: torch.mm(a, a, out=out), where, seconds) * 2 * size**3
    block = torch.empty(2**26 if where == "cpu" else 2**29, dtype=torch.uint8, device=where)
    copy = _rate(lambda: block.clone(), where, seconds / 2) * 2 * block.numel()
    return matmul * PROBED, copy * STREAMED


def _rate(work: Any, where: str, seconds: float) -> float:
    import torch

    wait = torch.cuda.synchronize if where == "cuda" else lambda: None
    work()
    wait()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        work()
        wait()
        count += 1
    return count / (time.perf_counter() - began)


# ---- a run's time --------------------------------------------------------------------------------------------------


def seconds_of(demand: Demand, planned: Memory, device: Device) -> dict[str, float]:
    """Part → seconds of the whole run, every completion as long as it may get."""
    micro_steps = demand.steps * demand.accumulation
    a_pass = _forward_flops(demand, planned.weights) / device.flops
    floor = LAYER_PASS_S[device.kind] * layers_of(demand.config)
    passes = (3 if demand.lora is None else 2) + demand.checkpointing  # frozen weights need no gradient of their own
    scored = (demand.reference + demand.extra_pass) * demand.rollouts * demand.rollout_rows / demand.micro_batch
    return {
        "generation": demand.rollouts * rollout_seconds(demand, planned, device),
        "reference and scoring passes": scored * max(a_pass, floor / 3),
        "forward and backward": micro_steps * max(passes * a_pass, floor),
    }


def _forward_flops(demand: Demand, weights: Weights) -> float:
    """Of one micro-batch: two a weight and token, and attention over half the sequence on average."""
    width = demand.config.get_text_config().hidden_size
    attention = 2 * demand.length * width * layers_of(demand.config)
    return demand.micro_batch * demand.length * (2 * weights.count + attention)


def rollout_seconds(demand: Demand, planned: Memory, device: Device) -> float:
    """Prompts are limited by FLOP/s; then one step a token, limited by FLOP/s, by reading weights and cache, or by launches."""
    weights, vllm = planned.weights, demand.vllm is not None or demand.vllm_server
    rows = min(demand.rollout_rows, VLLM_ROWS) if vllm else demand.rollout_rows
    waves = -(-demand.rollout_rows // rows)
    stored = weights.frozen + weights.trainable
    half_way = (demand.prompt + demand.completion / 2) / demand.length
    read = (stored + rows * half_way * planned.cache) / device.bandwidth
    compute = 2 * weights.count * rows / device.flops
    launches = VLLM_STEP_S if vllm else LAYER_STEP_S[device.kind] * layers_of(demand.config)
    prompts = 2 * weights.count * demand.rollout_rows * demand.prompt / device.flops
    return prompts + waves * demand.completion * max(read, compute, launches)
