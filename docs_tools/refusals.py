"""Settings that SAGEConfig refuses, by topic: docs/reference/refused.md shows each with the sentence that it gets. A test asks
that every refusal in the code is among them."""

from typing import Any

import torch

from sage_rlvr import Guide
from sage_rlvr.advantage import Advantage


class NeedsMore(Guide):
    """Asks for what no training run computes; so does the advantage below."""

    needs = frozenset({"weather"})

    def log_q(self, s: Any) -> torch.Tensor:
        return torch.zeros_like(s.logps)


class AsksMore(Advantage):
    kind, stage, needs = "prompts", "factor", frozenset({"weather"})

    def shape(self, r: Any) -> torch.Tensor:
        return torch.ones_like(r.rewards)


VLLM = {"use_vllm": True, "vllm_mode": "colocate"}
CASES: dict[str, list[dict[str, Any]]] = {
    "Guide and estimator": [
        {"guide": "branch", "anchor_estimator": "k3+"},
        {"guide": "random", "anchor_estimator": "k2"},
        {"guide": "branch", "beta": 0.0},
        {"guide": "none", "guide_args": {"ratio": 0.3}},
        {"guide": "none", "guide_center": "batch"},
        {"guide": None},
        {"guide_args": "ratio"},
        {"guide_center": "batch", "guide_hold": False},
        {"guide": "branch-quantile", "guide_hold": False},
        {"guide": "group", "guide_center": "batch"},
        {"guide": "docs_tools.refusals:NeedsMore"},
        {"anchor_estimator": "k4"},
        {"anchor_estimator": "k3", "use_bias_correction_kl": True},
        {"anchor_credit": "to_go"},
        {"anchor_estimator": "k1-reward", "anchor_credit": "to_go", "loss_type": "vespo"},
        {"guide": "none", "anchor_estimator": "k1-reward", "beta": 0.0},
    ],
    "Reference": [
        {"anchor_reset": -1},
        {"guide": "none", "anchor_reset": 100, "beta": 0.0},
        {"anchor_reset": 100, "sync_ref_model": True},
    ],
    "Advantage": [
        {"advantage": []},
        {"advantage_args": "share"},
        {"advantage": ["rarity", "focal"], "advantage_args": {"focal": 0.5}},
        {"advantage": "group", "advantage_args": {"scale": "none"}},
        {"advantage": ["rarity", "smooth"]},
        {"advantage": ["maxrl", "signed"]},
        {"advantage": ["rarity", "passk"]},
        {"advantage": "docs_tools.refusals:AsksMore"},
        {"guide": "none", "advantage": "rarity", "beta": 0.0},
        {"advantage": "alike"},
        {"advantage": "rarity", "multi_objective_aggregation": "normalize_then_sum"},
        {"advantage": "passk", "advantage_args": {"k": 16}},
        {"advantage": "passk", "num_generations_eval": 2},
        {"advantage": "entropy", "loss_type": "vespo"},
        {"advantage": "entropy", "importance_sampling_level": "sequence"},
        {"advantage": "kl_cov"},
        {"rarity": 0.5},
    ],
    "Rollouts": [
        {"num_generations": 7},
        {"dynamic_sampling": -1},
        {"dynamic_sampling": 4, "scale_rewards": "batch"},
        {"dynamic_sampling": 4, "multi_objective_aggregation": "normalize_then_sum"},
        {"reward_timeout_s": 0},
        {"generation_kwargs": {"temperature": 0.5}},
        {"stop_strings": ["</SOLUTION>"], "generation_kwargs": {"stop_strings": ["x"]}},
        {"tokens_per_microbatch": 0},
        {"tokens_per_microbatch": 4096, "top_entropy_quantile": 0.2},
    ],
    "vLLM": [
        {**VLLM, "min_p": 0.01},
        {**VLLM, "vllm_kv_cache_gib": 0},
        {"vllm_kv_cache_gib": 3},
        {"rollout_ahead": True},
        {**VLLM, "rollout_ahead": True, "vllm_importance_sampling_correction": False},
        {**VLLM, "rollout_ahead": True, "vllm_enable_sleep_mode": True},
        {**VLLM, "rollout_ahead": True, "vllm_tensor_parallel_size": 2},
        {**VLLM, "rollout_ahead": True, "dynamic_sampling": 1},
    ],
    "Kept answers": [
        {"keep_coef": 0.1},
        {"keep_from": "runs/kept", "keep_divergence": "kl"},
        {"keep_from": "runs/kept", "keep_coef": -1},
        {"keep_from": "runs/kept", "keep_batch": 0},
        {"keep_from": "runs/kept", "keep_divergence": "js", "anchor_reset": 10},
    ],
}
