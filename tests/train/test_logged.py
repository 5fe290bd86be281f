"""What a run says: metrics, log.jsonl, progress, the card, held-out pass@k."""

import json
import lzma
import random
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig

from sage_rlvr.runs import describe
from sage_rlvr.train import SAGEConfig, SAGETrainer, callbacks, measure
from sage_rlvr.train.callbacks import HeldOutPassAtK, PaidToRamble

from . import tiny
from .tiny import build


def test_every_promised_metric_is_there(folder, tmp_path):
    always = {"kl", "kl_ref", "entropy", "entropy_q80", "entropy_q95", "grad_norm", "reward", "sage/zero_variance_groups",
              "sage/distinct_answers", "sage/pseudo_kl"}  # fmt: skip
    q = {"sage/q_mean", "sage/q_min", "sage/q_max", "sage/active"}
    bonus = {"sage/bonus_abs", "sage/bonus_to_reward", "sage/bonus_length_correlation"}
    for options, expected in (
        ({"guide": "none"}, always),
        ({"guide": "branch"}, always | q),
        ({"guide": "tempered", "anchor_estimator": "k2"}, always | q),
        ({"guide": "branch", "anchor_estimator": "k1-reward"}, always | q | bonus),
        ({"guide": "branch", "dynamic_sampling": 1}, always | q | {"sage/resampled_groups", "sage/flat_groups_left"}),
    ):
        trainer = build(folder, tmp_path, report_to="tensorboard", **options)
        trainer.train()
        first = trainer.state.log_history[0]
        assert expected <= first.keys(), expected - first.keys()
        assert all(isinstance(first[k], float) for k in expected)


RECORDS = Path(__file__).parents[2] / "results" / "gpu" / "qwen1.5b"


@pytest.mark.skipif(not RECORDS.is_dir(), reason="the measured results are not shipped with the package")
def test_a_guide_that_pays_for_rambling_is_named_once_before_all_is_lost(folder, tmp_path, capsys):
    """The logs of a run that ended so, 98% of its completions truncated, and of three of the same arm that did not."""
    with tarfile.open(RECORDS / "look" / "branch_exact-s3.tar.gz") as tar:
        lost = [json.loads(line) for line in tar.extractfile("branch_exact-s3/train/log.jsonl")]
    with lzma.open(RECORDS / "runs.jsonl.xz", "rt") as f:
        runs = [run for run in map(json.loads, f) if run.get("name", "").startswith("branch_exact")]
    assert len(runs) == 3
    for log, said in [*((run["log"], 0) for run in runs), (lost, 1)]:
        callback = PaidToRamble()
        for entry in log:
            state = SimpleNamespace(is_world_process_zero=True, global_step=entry["step"])
            callback.on_log(None, state, None, logs=entry)
        printed = capsys.readouterr().out
        assert printed.count("the guide pays more than the task") == said
    assert "at step 57 the guide pays more than the task: the bonus is 1.04 per completion" in printed
    PaidToRamble().on_log(
        None, state, None, logs={"sage/bonus_abs": 2.0, "sage/pseudo_kl": 0.1}
    )  # the leash costs more
    assert not capsys.readouterr().out
    cut = {entry["step"]: entry["completions/clipped_ratio"] for entry in lost if "reward" in entry}
    assert cut[57] < 0.32
    assert min(cut[step] for step in range(73, 81)) > 0.85
    for options, watched in (
        ({"guide": "branch", "anchor_estimator": "k1-reward"}, True),
        ({"guide": "none", "anchor_estimator": "k1-reward"}, False),
        ({"guide": "branch"}, False),
    ):
        trainer = build(folder, tmp_path, **options)
        assert any(isinstance(c, PaidToRamble) for c in trainer.callback_handler.callbacks) is watched


@pytest.mark.parametrize(("paid", "said"), [(lambda step: 0.0, 1), (lambda step: float(step == 3), 0)])
def test_rewards_that_never_differ_are_named_once(folder, tmp_path, capsys, paid, said):
    """Twenty steps without one right completion; where one group of the first twenty steps differs, nothing is said."""
    calls = []

    def reward(completions, **columns):
        calls.append(1)
        return [paid(len(calls)) * (i % 2) for i in range(len(completions))]

    build(folder, tmp_path, max_steps=22, reward=reward, guide="none", logging_steps=1).train()
    printed = capsys.readouterr().out
    assert printed.count("in all 20 steps every group had equal rewards (mean 0)") == said, printed
    assert printed.count("every group had equal rewards") == said


def test_metrics_against_plain_arithmetic(folder, tmp_path):
    seen = []

    class Spy(SAGETrainer):
        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            seen.append(out)
            return out

    trainer = build(folder, tmp_path, Spy, guide="branch", max_steps=1, per_device_train_batch_size=8)
    buffered = []
    original = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (buffered.append(inputs), original(model, inputs))[1]
    trainer.train()
    log, inputs = trainer.state.log_history[0], buffered[0]
    logps, entropies, _ = seen[-1]
    on = inputs["completion_mask"].bool()
    h = entropies[on].detach().numpy()
    q = (1 + 0.3 * (entropies[on].detach() - 1.2).clamp(min=0)).clamp(0.6, 1.4)
    ratio = (inputs["ref_per_token_logps"] - logps.detach())[on]
    assert log["sage/q_mean"] == pytest.approx(float(q.mean()), rel=1e-5)
    assert log["sage/q_max"] == pytest.approx(float(q.max()), rel=1e-5)
    assert log["sage/active"] == pytest.approx(float((q != 1).float().mean()))
    assert log["entropy_q80"] == pytest.approx(np.quantile(h, 0.8), rel=1e-5)
    assert log["entropy_q95"] == pytest.approx(np.quantile(h, 0.95), rel=1e-5)
    assert log["kl_ref"] == pytest.approx(float((ratio.exp() - ratio - 1).mean()), abs=1e-6)
    assert log["sage/pseudo_kl"] == pytest.approx(float(-(ratio + q.log()).mean()), abs=1e-6)
    shaped = ratio + q.log()
    assert log["kl"] == pytest.approx(float((shaped.exp() - shaped - 1).mean()), abs=1e-5)


def test_a_step_of_more_tokens_than_torch_takes_quantiles_of():
    """2^24 + 1 tokens of one step, 64 MiB a tensor: the quantiles are those of the values 0 … 2^24."""
    n = 2**24 + 1
    entropies = torch.arange(n, dtype=torch.float32)[None].flip(1)
    nothing = torch.zeros(1, 1).expand(1, n)
    found = measure.step(
        measure.PerToken(nothing, entropies, None, None, None, torch.ones(1, 1).expand(1, n)), Accelerator(cpu=True)
    )
    assert found["entropy_q80"] == pytest.approx(0.8 * 2**24, rel=1e-7)
    assert found["entropy_q95"] == pytest.approx(0.95 * 2**24, rel=1e-7)


def test_distinct_answers_are_counted_per_group(folder, tmp_path):
    def boxed(prompts, trainer):
        out = tiny.given_rollouts(prompts, trainer)
        tok = trainer.processing_class
        texts = [f"<SOLUTION>{i % 4 // 2}</SOLUTION>" if i % 4 else "none" for i in range(len(prompts))]
        out["completion_ids"] = [tok(t)["input_ids"] + [tok.eos_token_id] for t in texts]
        out["logprobs"] = [[0.0] * len(i) for i in out["completion_ids"]]
        return out

    trainer = build(folder, tmp_path, given=boxed, max_completion_length=40)
    trainer.train()
    assert trainer.state.log_history[0]["sage/distinct_answers"] == 2.0  # per group: none, 0, 1, 1


def test_a_centred_guide_has_no_mean_and_follows_length_no_more(folder, tmp_path):
    seen = []

    class Spy(SAGETrainer):
        def held_log_q(self, inputs, *rest):
            seen.append((super().held_log_q(inputs, *rest), inputs["completion_mask"]))
            return seen[-1][0]

    options = {"guide": "branch", "guide_center": "batch", "gradient_accumulation_steps": 2, "max_steps": 1}
    build(folder, tmp_path, Spy, **options).train()
    assert len(seen) == 2
    total, count = sum(float(q.sum()) for q, _ in seen), sum(int(m.sum()) for _, m in seen)
    assert total / count == pytest.approx(0, abs=1e-6)
    assert any(abs(float(q.sum())) > 1e-3 for q, _ in seen), "the mean is the rollout batch's, not the slice's"
    assert all((q[m == 0] == 0).all() for q, m in seen)


def test_log_jsonl_holds_what_was_logged(folder, tmp_path):
    trainer = build(folder, tmp_path, max_steps=3)
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines if "loss" in x] == [1, 2, 3]
    for line, logged in zip(lines, trainer.state.log_history):
        assert line == logged


def test_the_console_has_a_banner_and_a_line_for_every_log_and_every_held_out_measurement(folder, tmp_path, capsys):
    trainer = build(folder, tmp_path, disable_tqdm=False, max_steps=3, guide="branch")
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(2)]
    trainer.add_callback(HeldOutPassAtK(trainer, rows, tiny.hash_reward, every=2, n=2, label="sums"))
    trainer.train()
    said = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(said) if line.startswith("anchor:"))
    names = [line.split(":")[0] for line in said[first:] if line[:1].isalpha() and ":" in line[:11]]
    assert names[:7] == ["anchor", "loss", "reference", "model", "data", "steps", "output"]
    shown = [line.split() for line in said if line[:1].isdigit()]
    assert [line[0] for line in shown] == ["0/3", "1/3", "2/3", "2/3", "3/3"]
    assert [line[1] for line in shown] == ["held", "reward", "held", "reward", "reward"]
    held = next(h for h in trainer.state.log_history if "held_out/sums/pass@1" in h)
    values = [f"{held[f'held_out/sums/pass@{k}']:.3f}" for k in (1, 2)]
    assert shown[0][1:] == ["held", "out", "sums", "pass@1", values[0], "pass@2", values[1]]
    assert shown[1][1::2] == ["reward", "KL", "active", "entropy", "length", "~" + shown[1][-2][1:]]
    logged = next(h for h in trainer.state.log_history if "loss" in h)
    assert float(shown[1][6]) == pytest.approx(logged["sage/active"], abs=0.006)
    assert float(shown[1][10]) == pytest.approx(logged["completions/mean_length"], abs=0.6)


def test_a_line_of_the_console_fits_a_terminal():
    logs = {
        "reward": 0.53125,
        "kl_ref": 0.00123,
        "sage/active": 0.302,
        "entropy": 0.4123,
        "completions/mean_length": 1212.3,
    }
    line = callbacks.step_line(logs)
    assert line == "reward 0.531  KL 0.0012  active 0.30  entropy 0.41  length 1212"
    assert len(f"120/2000  {line}  ~55 min") <= 82
    assert callbacks.step_line({"held_out/pass@1": 0.5}) == callbacks.step_line({"train_runtime": 3.0}) == ""


@pytest.mark.parametrize(
    ("options", "anchor", "loss", "reference"),
    [
        ({"guide": "tempered"}, "tempered guide (ratio 0.5, threshold 1.2, kappa_max 0.5, source policy) on π_ref, k3, β 0.2",
         "grpo, advantage group (r − mean)/std", "a frozen copy of the model, 0.1 MB"),
        ({"guide": "none", "beta": 0.0, "loss_type": "dapo", "scale_rewards": "none"}, "none (β 0)",
         "dapo, advantage group r − mean", "none"),
        ({"guide": "none", "anchor_reset": 3, "advantage": ["rarity", "focal"]}, "π_ref, k3, β 0.2",
         "grpo, advantage rarity (share 1.0) + focal (gamma 1.0) + group (r − mean)/std",
         "a frozen copy of the model, 0.1 MB; becomes the policy every 3 steps"),
    ],
)  # fmt: skip
def test_the_banner_says_what_the_run_is(folder, tmp_path, capsys, options, anchor, loss, reference):
    trainer = build(folder, tmp_path, **options)
    lines = describe.lines(trainer)
    assert all(len(line) <= 80 or str(tmp_path) in line or str(folder) in line for line in lines)
    whole = " ".join(" ".join(lines).split())
    for part in (f"anchor: {anchor}", f"loss: {loss} ", f"reference: {reference} ", f"output: {tmp_path}"):
        assert part in whole + " "
    trainer.args.log_level = "error"
    trainer.state.is_world_process_zero = True
    describe.Banner(trainer).on_train_begin(trainer.args, trainer.state, trainer.control)
    assert "anchor:" not in capsys.readouterr().out, "silent where warnings are"


def test_the_banner_knows_where_an_adapters_reference_lives(folder, tmp_path):
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    args = tiny.config(SAGEConfig, tmp_path)
    trainer = SAGETrainer(folder, tiny.hash_reward, args, tiny.dataset(), peft_config=lora)
    assert describe.reference(trainer) == "the base with the adapter off (no extra memory)"
    trainer.model.peft_config["ref"] = lora
    assert describe.reference(trainer) == "the base with a frozen copy of the adapter it was given"


def test_the_card_names_guide_estimator_and_anchor(folder, tmp_path):
    trainer = build(
        folder, tmp_path, guide="tempered", anchor_estimator="k1-reward", save_strategy="steps", save_steps=2
    )
    trainer.train()
    card = (tmp_path / "README.md").read_text()
    assert "tempered guide (ratio 0.5, threshold 1.2, kappa_max 0.5, source policy) on π_ref, k1-reward" in card
    assert "β 0.2" in card
    assert "k1 in the reward" in card
    assert "arXiv" in card
    assert "sage" in card.split("---")[1], "a tag for the Hub"


def test_held_out_pass_at_k_is_measured_and_changes_nothing(folder, tmp_path):
    def parity(completions, **kwargs):
        random.random(), np.random.random()  # as vLLM draws from both
        return [float(len(c) % 2) for c in completions]

    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(5)]
    histories, next_draws = {}, set()
    for name in ("with", "without"):
        trainer = build(folder, tmp_path / name, given=False, max_steps=4, max_completion_length=8)
        if name == "with":
            callback = HeldOutPassAtK(trainer, rows, parity, every=2, n=4)
            trainer.add_callback(callback)
        torch.manual_seed(0)
        trainer.train()
        histories[name] = [h for h in trainer.state.log_history if "loss" in h]
        next_draws.add((random.random(), np.random.random()))
    held = [h for h in callback.trainer.state.log_history if "held_out/pass@1" in h]
    assert [h["step"] for h in held] == [0, 2, 4]
    assert len(held) == 3
    assert all(0 <= h["held_out/pass@1"] <= h["held_out/pass@4"] <= 1 for h in held)
    assert held[0]["held_out/pass@4"] > held[0]["held_out/pass@1"] > 0
    strip = lambda hs: [{k: v for k, v in h.items() if k not in tiny.TIMES} for h in hs]  # noqa: E731
    assert strip(histories["with"]) == strip(histories["without"])
    assert len(next_draws) == 1, "Python's and NumPy's random states are put back too"
