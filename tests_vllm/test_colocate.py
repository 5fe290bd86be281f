"""Training with vLLM colocated, by TRL: the sampler has the policy's weights at every step, and nothing else has changed."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import vllm
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from sage_rlvr.errors import Failed
from sage_rlvr.models import vllm_logprobs
from sage_rlvr.train import SAGEConfig, SAGETrainer
from tests.models import tiny as model_tiny
from tests.train import tiny

from .small import blocks

ROOT = Path(__file__).parents[1]
CACHE_GIB = 0.125
pytestmark = pytest.mark.usefixtures("in_process")


def trainer(base, out, peft=True, **options):
    settings = {
        "use_vllm": True, "vllm_mode": "colocate", "vllm_kv_cache_gib": CACHE_GIB,
        "vllm_importance_sampling_mode": "token_truncate",
        "per_device_train_batch_size": 8, "max_steps": 3, "temperature": 1.0, "learning_rate": 2e-2 if peft else 1e-3,
    }  # fmt: skip
    args = tiny.config(SAGEConfig, out, **settings | options)
    lora = LoraConfig(r=8, target_modules=model_tiny.TARGETS) if peft else None
    return SAGETrainer(base, tiny.hash_reward, args, tiny.dataset(), peft_config=lora)


def logged(made):
    return [entry for entry in made.state.log_history if "reward" in entry]


GUIDED = {"guide": "branch", "guide_args": {"ratio": 0.3, "threshold": 0.5}}
EXACT = {"anchor_estimator": "k1-reward", "scale_rewards": "none", "loss_type": "dr_grpo"}


@pytest.mark.parametrize(
    ("peft", "options"), [(True, GUIDED), (True, GUIDED | EXACT), (False, {})], ids=["lora", "lora-exact", "full"]
)
def test_the_sampler_has_the_policys_weights_at_every_step(base, tmp_path, peft, options):
    made = trainer(base, tmp_path, peft, **options)
    engine = made.vllm_generation.llm.llm_engine
    cache = engine.vllm_config.cache_config
    assert cache.num_gpu_blocks == blocks(CACHE_GIB, cache)
    made.train()
    steps = logged(made)
    assert len(steps) == 3
    assert all(step["grad_norm"] > 0 for step in steps)
    for step in steps:  # the sampler's log-probs of what it drew, and the policy's: stale weights would be apart
        assert step["sampling/sampling_logp_difference/max"] < 1e-3, step
    made.vllm_generation.sync_weights()
    theirs = dict(engine.model_executor.driver_worker.model_runner.model.named_parameters())
    merged = made.model.merge_and_unload() if peft else made.model
    own = dict(merged.named_parameters())
    start = dict(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).named_parameters())
    for layer in (0, 1):
        name = f"model.layers.{layer}.mlp.down_proj.weight"
        torch.testing.assert_close(theirs[name], own[name], rtol=0, atol=1e-6)
        assert (own[name] - start[name]).abs().max() > 1e-4, "training moved it"


def test_a_batch_ahead_is_drawn_with_the_weights_of_one_batch_ago(base, tmp_path):
    """By the engine, in a thread. Adapters of each step are kept, and the log-probs of a batch are those of the step before."""
    made = trainer(base, tmp_path, rollout_ahead=True, max_steps=4, guide="none")
    drawn, threads, weights, judged = made.vllm_generation.generate, [], [], []
    made.vllm_generation.generate = lambda **asked: threads.append(threading.current_thread().name) or drawn(**asked)
    make = made._generate_and_score_completions

    def rollouts(inputs):
        weights.append({n: p.detach().clone() for n, p in made.model.named_parameters() if p.requires_grad})
        judged.append(make(inputs))
        return judged[-1]

    made._generate_and_score_completions = rollouts
    made.train()
    assert threads == ["MainThread", *["rollout_ahead"] * 3]
    steps = logged(made)
    apart = [step["sampling/sampling_logp_difference/max"] for step in steps]
    assert apart[0] < 1e-3 < 1e-2 < min(apart[1:]), "the sampler is one step behind from the second batch on"
    most = made.args.vllm_importance_sampling_clip_max
    for k in (1, 2, 3):
        batch = judged[k]  # the ratio is exp(current − sampler's): the sampler's are those of the last weights
        current = batch["old_per_token_logps"]
        sampled = current - batch["importance_sampling_ratio"].log()
        for name, p in made.model.named_parameters():
            if name in weights[k - 1]:
                p.data.copy_(weights[k - 1][name])
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        with torch.no_grad():
            before = made._get_per_token_logps_and_entropies(made.model, ids, mask, batch["completion_ids"].size(1))[0]
        inside = batch["completion_mask"].bool() & (batch["importance_sampling_ratio"] < most)
        assert inside.float().sum() > 0.5 * batch["completion_mask"].sum()
        torch.testing.assert_close(sampled[inside], before[inside], rtol=0, atol=1e-3)


def test_the_base_is_not_merged_into(base, tmp_path):
    made = trainer(base, tmp_path, **GUIDED)
    before = {n: p.clone() for n, p in made.model.named_parameters() if "lora" not in n}
    made.train()
    for name, weight in made.model.named_parameters():
        if name in before:
            assert torch.equal(weight, before[name]), name


def test_ids_and_log_probs_are_those_that_vllm_hands_on_itself(base, tmp_path, monkeypatch):
    """It does so where more than the drawn tokens' are asked for."""
    made = trainer(base, tmp_path)
    generation = made.vllm_generation
    assert generation.generation_kwargs["detokenize"] is False
    prompts = [{"prompt_token_ids": ids} for ids in ([5, 6, 7], [9, 8], [12])]

    def drawn(**more):
        how = vllm.SamplingParams(max_tokens=12, detokenize=False, ignore_eos=True, **more)
        outputs = generation.llm.generate(prompts, sampling_params=how, use_tqdm=False)
        return [o for request in outputs for o in sorted(request.outputs, key=lambda o: o.index)]

    for how in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3, "n": 2}):
        ours, theirs = drawn(logprobs=0, **how), drawn(logprobs=1, **how)
        assert len(ours) == 3 * how.get("n", 1)
        assert [o.token_ids for o in ours] == [o.token_ids for o in theirs]
        for own, other in zip(ours, theirs):
            for i, mine, all_of in zip(own.token_ids, own.logprobs, other.logprobs, strict=True):
                assert list(mine) == [i]
                assert mine[i].logprob == pytest.approx(all_of[i].logprob, abs=1e-6)
    assert drawn(temperature=0.0)[0].logprobs is None
    monkeypatch.setattr(vllm_logprobs, "LOGPROBS", "another name")
    with pytest.raises(Failed, match="gave 0 log-probs for 12 tokens"):
        drawn(logprobs=0, temperature=0.0)


STOPPED = {"stop_strings": ["s"], "max_completion_length": 40, "max_steps": 1}


def test_a_completion_ends_with_the_stop_string(base, tmp_path):
    ends_with_the_stop_string(trainer(base, tmp_path, **STOPPED))


def ends_with_the_stop_string(made):
    seen = []
    keep = made.reward_funcs[0]
    made.reward_funcs[0] = lambda completions, **more: seen.extend(completions) or keep(completions, **more)
    made.train()
    ended = [c for c in seen if "s" in c]
    assert ended
    assert all(c.index("s") == len(c) - 1 for c in ended)
    assert logged(made)[0]["sampling/sampling_logp_difference/max"] < 1e-3, (
        "tokens drawn after the stop string are not counted"
    )


def test_two_runs_that_start_together(base, tmp_path):
    """Each engine listens on a port; both chosen before either listens, as when a study starts several runs."""
    (tmp_path / "meeting").mkdir()
    command = [sys.executable, "-m", "tests_vllm.run_beside", base, str(tmp_path), str(tmp_path / "meeting")]
    environment = os.environ | {"PYTHONPATH": "src"}
    runs = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1200)
    assert runs.returncode == 0, runs.stderr[-3000:]
    apart = [float(line.split()[-1]) for line in runs.stdout.splitlines() if line.startswith("apart:")]
    assert len(apart) == 2
    assert max(apart) < 1e-3
