"""The trainer's other promises: refusals, stop strings, filtering, guards, what is logged, and that it learns."""

import json
import math

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig

import sage_rlvr
from sage_rlvr import Guide, UserError, register_guide
from sage_rlvr.train import SAGEConfig, SAGETrainer, rollouts
from sage_rlvr.train.callbacks import HeldOutPassAtK

from . import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("tiny"))


def build(folder, tmp_path, cls=SAGETrainer, given=True, reward=tiny.hash_reward, data=None, **options):
    args = tiny.config(SAGEConfig, tmp_path, **options)
    rollout = tiny.given_rollouts if given is True else given or None
    return cls(folder, reward, args, data or tiny.dataset(), rollout_func=rollout)


# ---- refused when the config is built ------------------------------------------------------------------------------


class Greedy(Guide):
    needs = frozenset({"hidden_states"})

    def log_q(self, s):
        return s.logps


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"anchor_estimator": "k2"}, "guide='branch' with anchor_estimator='k2' does nothing"),
        ({"anchor_estimator": "k3+"}, "guide='branch' with anchor_estimator='k3\\+' does nothing"),
        ({"guide": "random", "anchor_estimator": "k2"}, "guide='random' with anchor_estimator='k2' does nothing"),
        ({"beta": 0.0}, "guide='branch' with beta=0: the guide shapes the anchor and there is none"),
        ({"beta": 0.0, "guide": "none", "anchor_estimator": "k1-reward"}, "'k1-reward' with beta=0 adds nothing"),
        ({"guide": "needy"}, "guide='needy' needs hidden_states, which a training run does not compute"),
        ({"use_bias_correction_kl": True}, "use_bias_correction_kl=True contradicts anchor_estimator='k3'"),
        (
            {"use_bias_correction_kl": False, "anchor_estimator": "k3+", "guide": "tempered"},
            "use_bias_correction_kl=False contradicts anchor_estimator='k3\\+'",
        ),
        ({"anchor_estimator": "kl"}, "anchor_estimator='kl' is unknown; choose one of"),
        ({"guide_args": {"rho": 1}}, "guide 'branch' has no argument 'rho'"),
        ({"guide_args": [1]}, "guide_args=\\[1\\] must be a dict"),
        ({"anchor_credit": "to_go"}, "anchor_credit='to_go' is for anchor_estimator='k1-reward'"),
        ({"guide": "none", "guide_args": {"ratio": 1}}, "guide_args is set but guide='none'"),
        ({"dynamic_sampling": -1}, "dynamic_sampling=-1"),
        ({"guide_center": "batch", "guide_hold": False}, "guide_center='batch' takes the mean over a rollout batch"),
        ({"dynamic_sampling": 1, "scale_rewards": "batch"}, "dynamic_sampling with scale_rewards='batch'"),
        ({"stop_strings": ["x"], "generation_kwargs": {"stop_strings": "y"}}, "stop_strings is set twice"),
        ({"advantage": "median"}, "advantage='median' is unknown"),
    ],
)
def test_refused_in_one_sentence(tmp_path, options, sentence):
    register_guide("needy")(Greedy)
    with pytest.raises(UserError, match=sentence) as caught:
        tiny.config(SAGEConfig, tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'guide_strength'"):
        SAGEConfig(guide_strength=1)


def test_no_arguments_is_sage_as_published():
    args = SAGEConfig()
    assert (args.guide, args.anchor_estimator, args.beta, args.loss_type) == ("branch", "k3", 0.05, "grpo")
    assert args.use_bias_correction_kl is False
    assert args.make_guide().settings() == {
        "ratio": 0.3, "threshold": 1.2, "q_min": 0.6, "q_max": 1.4, "source": "policy",
    }  # fmt: skip
    theirs, changed = GRPOConfig(bf16=False), set()
    for name in theirs.to_dict():
        if getattr(args, name) != getattr(theirs, name) and name not in ("logging_dir", "run_name", "output_dir"):
            changed.add(name)
    assert changed == {"beta", "loss_type", "use_bias_correction_kl"}


def test_a_grpo_config_is_refused_and_none_is_made(folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="SAGETrainer takes a SAGEConfig, not GRPOConfig"):
        SAGETrainer(folder, tiny.hash_reward, tiny.config(GRPOConfig, tmp_path), tiny.dataset())
    monkeypatch.chdir(tmp_path)
    assert SAGETrainer(folder, tiny.hash_reward, train_dataset=tiny.dataset()).guide.name == "branch"
    assert sage_rlvr.SAGETrainer is SAGETrainer


def test_exactness_is_said(folder, tmp_path, capsys):
    exact = {"anchor_estimator": "k1-reward", "scale_rewards": "none", "loss_type": "dr_grpo", "min_p": 0.0}
    build(folder, tmp_path, **exact)
    assert "the exact case" in capsys.readouterr().out.replace("not the exact case", "")
    build(folder, tmp_path, **(exact | {"min_p": 0.01, "num_iterations": 2}))
    said = capsys.readouterr().out
    assert "not the exact case: num_iterations=2 (exact: 1); min_p=0.01 (exact: 0)" in said
    token = tiny.config(SAGEConfig, tmp_path, guide="token", anchor_credit="to_go", **exact)
    assert token.departures() == [
        "anchor_credit='to_go' with guide 'token', which looks at later tokens (exact: 'sequence')"
    ]


# ---- where a completion ends ---------------------------------------------------------------------------------------


def test_stop_cut_finds_the_token_that_completes_the_stop():
    tok = tiny.tokenizer()
    ids = tok("ab</SOLUTION>cd</SOLUTION>")["input_ids"]
    assert tok.decode(ids[: rollouts.stop_cut(ids, ["</SOLUTION>"], tok.decode)]) == "ab</SOLUTION>"
    assert rollouts.stop_cut(tok("abc")["input_ids"], ["</SOLUTION>"], tok.decode) is None
    assert rollouts.stop_cut(ids, ["zz", "b<"], tok.decode) == 3


def test_completions_stopped_by_a_string_are_finished(folder, tmp_path):
    """Real sampling with transformers.generate: '7' or 'q' ends a completion; only those at the limit are truncated."""
    batches = []

    class Spy(SAGETrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            batches.append((output, dict(self._metrics["train"])))
            return output

    options = {"stop_strings": ["7", "q", "z", "k"], "mask_truncated_completions": True, "max_completion_length": 12}
    options |= {"per_device_train_batch_size": 32, "max_steps": 3}
    trainer = build(folder, tmp_path, Spy, given=False, **options)
    trainer.train()
    tok, kinds = trainer.processing_class, {"stopped": 0, "truncated": 0, "eos": 0}
    for output, metrics in batches:
        truncated = 0
        for ids, mask in zip(output["completion_ids"].tolist(), output["completion_mask"].tolist()):
            counted = [i for i, m in zip(ids, mask) if m]
            text = tok.decode(counted)
            hits = sum(text.count(s) for s in "7qzk")
            if not counted:  # filtered: it must have run to the limit without an end
                full = tok.decode(ids)
                assert len(ids) == 12
                assert not any(s in full for s in "7qzk")
                assert tok.eos_token_id not in ids
                kinds["truncated"] += 1
                truncated += 1
            elif hits:
                assert hits == 1
                assert text[-1] in "7qzk"
                kinds["stopped"] += 1
            else:
                assert counted[-1] == tok.eos_token_id
                kinds["eos"] += 1
        assert metrics["completions/clipped_ratio"][-1] == pytest.approx(truncated / 32)
        assert int(output["num_items_in_batch"]) == int(output["completion_mask"].sum())
    assert kinds["stopped"] > 5, kinds
    assert kinds["truncated"] > 5, kinds


# ---- BNPO and DAPO -------------------------------------------------------------------------------------------------


def beta_pdf(p, a, b):
    return p ** (a - 1) * (1 - p) ** (b - 1) * math.gamma(a + b) / (math.gamma(a) * math.gamma(b))


def test_beta_advantage_by_hand():
    rewards = torch.tensor([1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1.0])
    got = rollouts.beta_advantage(rewards, 4)
    p = [0.25, 0.5, 0.75, 1.0]
    mean, var = sum(p) / 4, sum((x - sum(p) / 4) ** 2 for x in p) / 4
    both = mean * (1 - mean) / var - 1
    a, b = mean * both, (1 - mean) * both
    for i, r in enumerate(rewards.tolist()):
        here = p[i // 4]
        want = 0.0 if here == 1.0 else (r - here) / beta_pdf(here, 1 + a / 3, 1 + b / 3)
        assert float(got[i]) == pytest.approx(want, rel=1e-4)


def test_beta_advantage_special_cases():
    """(1, 1) is REINFORCE with a baseline; (3/2, 3/2) is GRPO up to a constant; nan and flat groups carry nothing."""
    extreme = torch.tensor([1, 1, 0, 0.0])  # p = 1 and 0: the fit degenerates to (1, 1), and r − p is 0 everywhere
    assert rollouts.beta_advantage(extreme, 2).tolist() == [0, 0, 0, 0]
    grpo = {x: (1 - x) / math.sqrt(x * (1 - x)) for x in (0.2, 0.5, 0.7)}
    ours = {x: (1 - x) / beta_pdf(x, 1.5, 1.5) for x in grpo}
    assert len({round(ours[x] / grpo[x], 9) for x in grpo}) == 1
    some = torch.tensor([float("nan"), 1, 0, 1, float("nan"), float("nan"), float("nan"), float("nan")])
    got = rollouts.beta_advantage(some, 4)
    assert got[0] == 0
    assert got[4:].tolist() == [0] * 4
    assert got[1] > 0 > got[2]
    alike = rollouts.beta_advantage(torch.tensor([1, 0, 1, 0.0]), 2)
    assert torch.isfinite(alike).all()
    assert alike[0] > 0
    with pytest.raises(UserError, match="takes rewards between 0 and 1"):
        rollouts.beta_advantage(torch.tensor([2.0, 0.0]), 2)


def test_bnpo_trains_with_its_own_advantage(folder, tmp_path):
    seen = []

    class Spy(SAGETrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append((output["advantages"], self._rewards))
            return output

    options = {"loss_type": "bnpo", "advantage": "beta", "per_device_train_batch_size": 16}
    build(folder, tmp_path, Spy, **options).train()
    for advantages, rewards in seen:
        assert torch.allclose(advantages, rollouts.beta_advantage(rewards, 4))
        assert advantages.abs().sum() > 0


def odd_reward(prompts, completions, **kwargs):
    """Flat (all 0) for even prompts, uneven within the group for odd ones."""
    return [float(i % 2) * (int(p.split("+")[0]) % 2) for i, p in enumerate(prompts)]


@pytest.mark.parametrize("rounds", [1, 8])
def test_dynamic_sampling_draws_new_prompts_for_flat_groups(folder, tmp_path, rounds):
    seen = []

    class Spy(SAGETrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append((output, {k: v[-1] for k, v in self._metrics["train"].items()}))
            return output

    options = {"dynamic_sampling": rounds, "per_device_train_batch_size": 24, "max_steps": 3}
    trainer = build(folder, tmp_path, Spy, reward=odd_reward, **options)
    trainer.train()
    tok, left = trainer.processing_class, 0
    for output, metrics in seen:
        prompts = tok.batch_decode(output["prompt_ids"], skip_special_tokens=True)
        assert len(prompts) == 24
        for i in range(0, 24, 4):
            assert len(set(prompts[i : i + 4])) == 1, "groups stay whole"
            odd = int(prompts[i].split("+")[0]) % 2
            assert bool(output["advantages"][i : i + 4].any()) == bool(odd)
            left += not odd
            for row in range(i, i + 4):  # a replaced row brings its own completion along
                digest = tiny.given_rollouts([prompts[i]] * 4, trainer)["completion_ids"][row % 4]
                ids, mask = output["completion_ids"][row], output["completion_mask"][row].bool()
                assert ids[mask].tolist() == digest
        assert int(output["num_items_in_batch"]) == int(output["completion_mask"].sum())
        assert metrics["sage/resample_rounds"] <= rounds
    assert metrics["reward"] is not None
    counted = sum(m["sage/flat_groups_left"] for _, m in seen)
    assert counted == left
    assert sum(m["sage/resampled_groups"] for _, m in seen) > 0
    assert (left == 0) if rounds == 8 else (left > 0)
    history = [h for h in trainer.state.log_history if "reward" in h]
    assert all(h["reward"] <= 0.5 for h in history), "extra rounds are not steps of their own"


def test_prompt_stream_is_a_function_of_seed_and_position():
    data = Dataset.from_dict({"prompt": list("abcdefg")})
    a, b = rollouts.PromptStream(data, 3), rollouts.PromptStream(data, 3)
    walk = [r["prompt"] for r in a.take(21)]
    assert sorted(walk[:7]) == sorted(walk[7:14]) == list("abcdefg")
    assert walk[:7] != walk[7:14]
    b.position = 10
    assert [r["prompt"] for r in b.take(11)] == walk[10:]


# ---- guards --------------------------------------------------------------------------------------------------------


def test_nan_stops_the_run_and_names_step_tensor_and_checkpoint(folder, tmp_path):
    class Poisoned(SAGETrainer):
        def training_step(self, *args):
            if self.state.global_step == 2:
                with torch.no_grad():
                    self.model.model.norm.weight[0] = float("nan")
            return super().training_step(*args)

    trainer = build(folder, tmp_path, Poisoned, max_steps=4, save_strategy="steps", save_steps=1)
    with pytest.raises(FloatingPointError) as caught:
        trainer.train()
    said = str(caught.value)
    assert "log-probs became nan at step 2 (row 0, token 0)" in said
    assert f"resume from {tmp_path}/checkpoint-2" in said


def test_an_infinite_advantage_stops_it_too(folder, tmp_path):
    def wild(completions, **kwargs):
        return [float("inf") if i == 0 else 0.0 for i in range(len(completions))]

    with pytest.raises(FloatingPointError, match=r"at step 0.*no checkpoint was saved yet"):
        build(folder, tmp_path, reward=wild, scale_rewards="none").train()


def test_an_all_masked_batch_does_not(folder, tmp_path):
    def endless(prompts, trainer):
        out = tiny.given_rollouts(prompts, trainer)
        out["completion_ids"] = [[5] * 16 for _ in prompts]
        out["logprobs"] = [[0.0] * 16 for _ in prompts]
        return out

    for estimator in ("k3", "k1-reward"):
        options = {"mask_truncated_completions": True, "anchor_estimator": estimator}
        trainer = build(folder, tmp_path, given=endless, **options)
        trainer.train()
        assert [h["loss"] for h in trainer.state.log_history if "loss" in h] == [0.0, 0.0]


def test_unscorable_rows_get_no_bonus(folder, tmp_path):
    """A None reward is neither 0 nor part of the group's mean, and k1's bonus does not move the row either."""
    seen = []

    class Spy(SAGETrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append(output["advantages"])
            return output

    def partly(completions, **kwargs):
        return [None if i % 4 == 1 else float(i % 2) for i in range(len(completions))]

    build(folder, tmp_path, Spy, reward=partly, anchor_estimator="k1-reward", scale_rewards="none").train()
    for advantages in seen:
        assert advantages[1] == 0
        assert abs(float(advantages.sum())) < 1e-5, "centred over the rows that count"


# ---- what is logged ------------------------------------------------------------------------------------------------


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
    import numpy as np

    assert log["sage/q_mean"] == pytest.approx(float(q.mean()), rel=1e-5)
    assert log["sage/q_max"] == pytest.approx(float(q.max()), rel=1e-5)
    assert log["sage/active"] == pytest.approx(float((q != 1).float().mean()))
    assert log["entropy_q80"] == pytest.approx(np.quantile(h, 0.8), rel=1e-5)
    assert log["entropy_q95"] == pytest.approx(np.quantile(h, 0.95), rel=1e-5)
    assert log["kl_ref"] == pytest.approx(float((ratio.exp() - ratio - 1).mean()), abs=1e-6)
    assert log["sage/pseudo_kl"] == pytest.approx(float(-(ratio + q.log()).mean()), abs=1e-6)
    shaped = ratio + q.log()
    assert log["kl"] == pytest.approx(float((shaped.exp() - shaped - 1).mean()), abs=1e-5)


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


def test_the_card_names_guide_estimator_and_anchor(folder, tmp_path):
    trainer = build(
        folder, tmp_path, guide="tempered", anchor_estimator="k1-reward", save_strategy="steps", save_steps=2
    )
    trainer.train()
    card = (tmp_path / "README.md").read_text()
    assert "TemperedGuide(ratio=0.5, threshold=1.2, kappa_max=0.5, source='policy')" in card
    assert "q·π_ref" in card
    assert "β = 0.2" in card
    assert "k1 in the reward" in card
    assert "arXiv" in card
    assert "sage" in card.split("---")[1], "a tag for the Hub"


def test_progress_shows_reward_kl_entropy_and_time_left(folder, tmp_path, capsys):
    build(folder, tmp_path, disable_tqdm=False, max_steps=3).train()
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("step ")]
    assert len(lines) == 3
    for word in ("step 1/3", "reward", "kl", "entropy", "s left"):
        assert word in lines[0]


# ---- held-out pass@k -----------------------------------------------------------------------------------------------


def test_held_out_pass_at_k_is_measured_and_changes_nothing(folder, tmp_path):
    def parity(completions, **kwargs):
        return [float(len(c) % 2) for c in completions]

    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(5)]
    histories = {}
    for name in ("with", "without"):
        trainer = build(folder, tmp_path / name, given=False, max_steps=4, max_completion_length=8)
        if name == "with":
            callback = HeldOutPassAtK(trainer, rows, parity, every=2, n=4)
            trainer.add_callback(callback)
        torch.manual_seed(0)
        trainer.train()
        histories[name] = [h for h in trainer.state.log_history if "loss" in h]
    held = [h for h in callback.trainer.state.log_history if "held_out/pass@1" in h]
    assert [h["step"] for h in callback.history] == [0, 2, 4]
    assert len(held) == 3
    assert all(0 <= h["held_out/pass@1"] <= h["held_out/pass@4"] <= 1 for h in held)
    assert held[0]["held_out/pass@4"] > held[0]["held_out/pass@1"] > 0
    clock = {"step_time"}
    strip = lambda hs: [{k: v for k, v in h.items() if k not in clock} for h in hs]  # noqa: E731
    assert strip(histories["with"]) == strip(histories["without"])


# ---- it learns -----------------------------------------------------------------------------------------------------


def even_digit(completions, **kwargs):
    """Right if the completion begins with an even digit: a thing a random model does one time in ten."""
    return [float(c[:1] in tuple("02468")) for c in completions]


@pytest.mark.parametrize("options", [{"guide": "none"}, {"guide": "branch"}], ids=["grpo", "sage"])
def test_a_tiny_model_learns(tmp_path, options):
    folder = tiny.folder(tmp_path / "model", spread=0.05)
    options |= {
        "per_device_train_batch_size": 64,
        "num_generations": 16,
        "max_steps": 40,
        "learning_rate": 3e-3,
        "beta": 0.02,
    }
    options |= {"max_completion_length": 4, "temperature": 1.0, "logging_steps": 40}
    trainer = build(folder, tmp_path / "run", given=False, reward=even_digit, **options)
    tok = trainer.processing_class

    def share_of_even():
        """Read from text, sampled anew with a fixed seed."""
        torch.manual_seed(123)
        batch = tok([f"{i}+{i}=" for i in range(8)] * 32, return_tensors="pt", padding=True)
        with torch.no_grad():
            out = trainer.model.generate(**batch, max_new_tokens=2, do_sample=True, pad_token_id=0)
        texts = tok.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        return sum(t[:1] in tuple("02468") for t in texts) / len(texts)

    before = share_of_even()
    trainer.train()
    after = share_of_even()
    assert before < 0.25
    assert after > before + 0.5, (before, after)


def test_sync_ref_model_moves_the_anchor(folder, tmp_path):
    """With it the anchor follows the policy: after a full copy the plain KL is 0 again."""
    options = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0, "max_steps": 3}
    trainer = build(folder, tmp_path, **options)
    trainer.train()
    assert all(h["kl_ref"] == pytest.approx(0, abs=1e-6) for h in trainer.state.log_history if "kl_ref" in h)
    trainer = build(folder, tmp_path, max_steps=3)
    trainer.train()
    assert trainer.state.log_history[2]["kl_ref"] > 1e-3


def test_log_jsonl_holds_what_was_logged(folder, tmp_path):
    trainer = build(folder, tmp_path, max_steps=3)
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines if "loss" in x] == [1, 2, 3]
    for line, logged in zip(lines, trainer.state.log_history):
        assert line == logged
