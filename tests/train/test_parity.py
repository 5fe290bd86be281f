"""Guide off: bit for bit GRPOTrainer. Guide on: an independent formula, from METHOD, on full logits. Same grid."""

from itertools import combinations, product

import pytest
import torch
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from sage_rlvr.train import SAGEConfig, SAGETrainer

from ..slow import but_few
from . import tiny

LOSSES = ["grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo", "sequence"]
SCHEDULES = [(1, 1, 1), (2, 2, 1), (2, 4, 2)]  # accumulation, steps per generation, iterations
TUNING = ["full", "lora"]


def thinned(*axes):
    """Of the cells of three axes the half that has every pair of settings; a third of it is fast, with every setting."""
    cells = [cell for cell in product(*map(enumerate, axes)) if sum(i for i, _ in cell) % 2 == 0]
    fast = {n for n, ((i, _), (j, _), _) in enumerate(cells) if (i + j) % 3 == 0}
    return but_few([tuple(value for _, value in cell) for cell in cells], fast)


GRID = thinned(LOSSES, SCHEDULES, TUNING)
PASSES = [
    ({"guide": "branch"}, 0),
    ({"guide": "tempered", "anchor_estimator": "k2"}, 0),
    ({"guide": "branch", "guide_args": {"source": "reference"}}, 0),
    ({"guide": "branch", "anchor_estimator": "k1-reward"}, 1),
    ({"guide": "branch-quantile"}, 1),
]


@pytest.mark.parametrize("axes", [(LOSSES, SCHEDULES, TUNING), (range(len(PASSES)), SCHEDULES, TUNING)])
def test_the_cells_have_every_pair_of_settings_and_the_fast_ones_every_setting(axes):
    every = [cell.values for cell in thinned(*axes)]
    fast = [cell.values for cell in thinned(*axes) if not cell.marks]
    for a, b in combinations(range(3), 2):
        assert {(cell[a], cell[b]) for cell in every} == set(product(axes[a], axes[b]))
    for a in range(3):
        assert {cell[a] for cell in fast} == set(axes[a])


def options(loss, schedule, **more):
    accumulation, per_generation, iterations = schedule
    out = {"loss_type": loss, "gradient_accumulation_steps": accumulation, "steps_per_generation": per_generation}
    out |= {"num_iterations": iterations, "max_steps": per_generation * iterations // accumulation + 1}
    if loss == "sequence":
        out |= {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    if loss == "cispo":
        out |= {"epsilon_high": 1.05}
    return out | more


def lora(tuning):
    if tuning == "full":
        return None
    return LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights="gaussian")


def recorded(cls):
    """The trainer, keeping each micro-step's loss and the gradients accumulated so far."""

    class Recorded(cls):
        record: list

        def training_step(self, model, inputs, num_items_in_batch):
            loss = super().training_step(model, inputs, num_items_in_batch)
            grads = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
            self.record = [*getattr(self, "record", []), (loss.clone(), grads)]
            return loss

    return Recorded


def build(cls, config_cls, folder, tmp_path, tuning, **kwargs):
    args = tiny.config(config_cls, tmp_path, **kwargs)
    return cls(
        folder, tiny.hash_reward, args, tiny.dataset(), rollout_func=tiny.given_rollouts, peft_config=lora(tuning)
    )


@pytest.mark.parametrize(("loss", "schedule", "tuning"), GRID)
def test_guide_off_is_grpo_exactly(folder, tmp_path, loss, schedule, tuning):
    shared = options(loss, schedule)
    ours = build(recorded(SAGETrainer), SAGEConfig, folder, tmp_path / "a", tuning, guide="none", **shared)
    theirs = build(
        recorded(GRPOTrainer), GRPOConfig, folder, tmp_path / "b", tuning, use_bias_correction_kl=False, **shared
    )
    for trainer in (ours, theirs):
        torch.manual_seed(0)  # TRL shuffles a rollout batch with the global generator
        trainer.train()
    assert len(ours.record) == len(theirs.record) > 0
    for (a, grads_a), (b, grads_b) in zip(ours.record, theirs.record):
        assert torch.equal(a, b)
        assert grads_a.keys() == grads_b.keys()
        assert all(torch.equal(grads_a[n], grads_b[n]) for n in grads_a)
    assert any(g.abs().sum() > 0 for g in ours.record[0][1].values())
    for key in ("kl", "entropy", "reward", "grad_norm"):
        assert [x.get(key) for x in ours.state.log_history] == [x.get(key) for x in theirs.state.log_history]


@pytest.mark.parametrize("bonus", [0.0, 0.1])
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_our_head_gives_trls_gradients(folder, tmp_path, tuning, bonus):
    shared = options("grpo", (1, 1, 1), guide="none", entropy_coef=bonus, max_steps=1)
    records = []
    for fused in (True, False):
        trainer = build(
            recorded(SAGETrainer), SAGEConfig, folder, tmp_path / str(fused), tuning, fused_head=fused, **shared
        )
        assert (trainer._head is not None) == fused
        torch.manual_seed(0)
        trainer.train()
        records.append(trainer.record[0])
    (loss, grads), (their_loss, their_grads) = records
    torch.testing.assert_close(loss, their_loss, atol=1e-5, rtol=1e-5)
    assert grads.keys() == their_grads.keys()
    for name, gradient in grads.items():
        assert (gradient - their_grads[name]).norm() <= 1e-5 * their_grads[name].norm() + 1e-6, name


def test_k3_plus_with_guide_off_is_grpo_with_bias_correction(folder, tmp_path):
    shared = options("grpo", (2, 4, 2))
    ours = build(
        recorded(SAGETrainer),
        SAGEConfig,
        folder,
        tmp_path / "a",
        "full",
        guide="none",
        anchor_estimator="k3+",
        **shared,
    )
    theirs = build(
        recorded(GRPOTrainer), GRPOConfig, folder, tmp_path / "b", "full", use_bias_correction_kl=True, **shared
    )
    for trainer in (ours, theirs):
        torch.manual_seed(0)  # TRL shuffles a rollout batch with the global generator
        trainer.train()
    assert all(torch.equal(a[0], b[0]) for a, b in zip(ours.record, theirs.record))


# ---- the independent formula ---------------------------------------------------------------------------------------


def full_logits(model, inputs, temperature):
    """log-probs and entropies of the completion from plain logits: no fused head, no code of ours."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1] / temperature
    logp = logits.log_softmax(-1)
    keep = inputs["completion_ids"].shape[1]
    entropy = -(logp.exp() * logp).sum(-1)[:, -keep:]
    return logp.gather(-1, ids[:, 1:, None])[..., 0][:, -keep:], entropy


def policy_term(loss, ratio, advantage, logp, epsilon=0.2, high=None):
    """Per-token policy loss of each algorithm, from its paper."""
    high = high or epsilon
    if loss == "cispo":
        return -ratio.clamp(max=high).detach() * advantage * logp
    if loss == "sapo":
        t = torch.where(advantage > 0, 1.0, 1.05)
        return -torch.sigmoid(t * (ratio - 1)) * 4 / t * advantage
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - epsilon, 1 + high) * advantage)


def aggregate(loss, x, mask, args, inputs, accumulation):
    if loss in ("grpo", "sequence", "sapo"):
        return ((x * mask).sum(1) / mask.sum(1)).mean() / accumulation
    if loss == "bnpo":
        return (x * mask).sum() / mask.sum() / accumulation
    if loss == "dr_grpo":
        return (x * mask).sum() / (len(x) * args.max_completion_length) / accumulation
    window = (
        inputs["num_items_in_batch"] * accumulation / args.steps_per_generation
    )  # dapo, cispo: mean over all tokens
    return (x * mask).sum() / window


def penalty_term(estimator, logp, ref, log_q, ratio):
    rho = torch.exp(ref + log_q - logp)
    if estimator == "k2":
        return 0.5 * torch.log(rho) ** 2
    if estimator == "forward":
        return -rho.detach() * logp
    if estimator == "forward-value":
        return rho * torch.log(rho) - rho + 1
    k3 = rho - torch.log(rho) - 1
    return k3 * ratio if estimator == "k3+" else k3


def shape(guide, logp, ref, entropy):
    if guide == "branch":
        return torch.log(torch.clamp(1 + 0.3 * torch.clamp(entropy - 1.2, min=0), 0.6, 1.4))
    if guide == "tempered":
        return torch.clamp(0.5 * torch.clamp(entropy - 1.2, min=0), max=0.5) * -ref
    return torch.zeros_like(logp)


class Checked(SAGETrainer):
    """Beside each loss, the formula's: value and gradients at the same weights. log q from the sampling policy, kept here."""

    guide_name, estimator_name, loss_name = "branch", "k3", "grpo"

    def _prepare_inputs(self, batch):
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(batch)
        if self._buffered_inputs is not before:  # a new rollout batch: note the sampling policy's numbers
            self.frozen = {}
            for part in self._buffered_inputs:
                with torch.no_grad():
                    logp, entropy = full_logits(self.model, part, self.temperature)
                    ref, _ = self.reference(part)
                self.frozen[id(part)] = (logp, ref, shape(self.guide_name, logp, ref, entropy))
        return inputs

    def reference(self, part):
        if self.ref_model is not None:
            return full_logits(self.ref_model, part, self.temperature)
        with self.model.disable_adapter():
            return full_logits(self.model, part, self.temperature)

    def formula(self, inputs):
        logp, _ = full_logits(self.model, inputs, self.temperature)
        old, ref, log_q = self.frozen[id(inputs)]
        mask = inputs["completion_mask"]
        log_ratio = logp - old
        if self.loss_name == "sequence":
            log_ratio = ((log_ratio * mask).sum(1) / mask.sum(1))[:, None]
        ratio, advantage = log_ratio.exp(), inputs["advantages"]
        advantage = advantage[:, None] if advantage.dim() == 1 else advantage
        per_token = policy_term(self.loss_name, ratio, advantage, logp, high=self.args.epsilon_high)
        if self.estimator_name != "k1-reward":
            per_token = per_token + self.args.beta * penalty_term(self.estimator_name, logp, ref, log_q, ratio)
        return aggregate(self.loss_name, per_token, mask, self.args, inputs, self.current_gradient_accumulation_steps)

    def _compute_loss(self, model, inputs):
        frozen_before = {k: v.clone() for k, v in inputs.items() if isinstance(v, torch.Tensor)}
        loss = super()._compute_loss(model, inputs)
        weights = [p for p in self.model.parameters() if p.requires_grad]
        want = self.formula(inputs)
        got_grads = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        want_grads = torch.autograd.grad(want, weights, allow_unused=True)
        self.pairs = [*getattr(self, "pairs", []), (loss.detach(), want.detach(), got_grads, want_grads)]
        assert set(frozen_before) == set(inputs), "nor is anything added to them"
        assert all(torch.equal(inputs[k], v) for k, v in frozen_before.items()), "buffers are never changed in place"
        return loss


def assert_equals_formula(trainer):
    trainer.train()
    assert trainer.pairs
    for got, want, got_grads, want_grads in trainer.pairs:
        assert float(got) == pytest.approx(float(want), rel=1e-4, abs=1e-5)
        flat = lambda grads: torch.cat([g.flatten() for g in grads if g is not None])  # noqa: E731
        a, b = flat(got_grads), flat(want_grads)
        assert float((a - b).norm() / b.norm()) < 1e-4


def checked(folder, tmp_path, loss, schedule, tuning, guide, estimator, **more):
    shared = options(loss, schedule, guide=guide, anchor_estimator=estimator, **more)
    trainer = build(Checked, SAGEConfig, folder, tmp_path, tuning, **shared)
    trainer.guide_name, trainer.estimator_name, trainer.loss_name = guide, estimator, loss
    return trainer


@pytest.mark.parametrize(("loss", "schedule", "tuning"), GRID)
def test_branch_k3_is_the_formula(folder, tmp_path, loss, schedule, tuning):
    assert_equals_formula(checked(folder, tmp_path, loss, schedule, tuning, "branch", "k3"))


ESTIMATORS = ["k2", "k3+", "forward", "forward-value"]
RUNS = [(x, (2, 4, 2)) for x in LOSSES] + [("grpo", (1, 1, 1))]
CELLS = [
    (*r, ESTIMATORS[(i + j) % 4]) for j in (0, 1) for i, r in enumerate(RUNS)
]  # every loss and estimator, twice over


@pytest.mark.parametrize(("loss", "schedule", "estimator"), but_few(CELLS, range(4)))
def test_other_estimators_are_the_formula(folder, tmp_path, loss, schedule, estimator):
    assert_equals_formula(checked(folder, tmp_path, loss, schedule, "full", "tempered", estimator))


# ---- k1 in the reward ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "scale", "guide"), thinned(SCHEDULES, ["none", "group"], ["branch", "none"]))
def test_k1_reward_is_added_after_the_task_reward_is_scaled(folder, tmp_path, schedule, guide, scale):
    """A = (r − mean r)/s + β·(b − mean b) with b the sequence sum at the sampling policy; the loss has no penalty."""
    trainer = checked(folder, tmp_path, "grpo", schedule, "full", guide, "k1-reward", scale_rewards=scale)
    seen = []
    original = trainer._generate_and_score_completions

    def spy(inputs):
        output = original(inputs)
        with torch.no_grad():
            logp, entropy = full_logits(trainer.model, output, trainer.temperature)
            ref, _ = trainer.reference(output)
        log_q = shape(guide, logp, ref, entropy)
        bonus = ((ref + log_q - logp) * output["completion_mask"]).sum(1).view(-1, 4)
        texts = trainer.processing_class.batch_decode(output["completion_ids"], skip_special_tokens=True)
        reward = torch.tensor(tiny.hash_reward(texts)).view(-1, 4)
        task = reward - reward.mean(1, keepdim=True)
        if scale == "group":
            task = task / (reward.std(1, keepdim=True) + 1e-4)
        seen.append((output["advantages"], (task + 0.2 * (bonus - bonus.mean(1, keepdim=True))).flatten()))
        return output

    trainer._generate_and_score_completions = spy
    assert_equals_formula(trainer)
    for got, want in seen:
        assert torch.allclose(got, want, atol=1e-4)
    assert any((got.view(-1, 4).std(1) > 0).all() for got, _ in seen), "a flat group still has a bonus"


def test_to_go_credit_is_per_token(folder, tmp_path):
    more = {"anchor_credit": "to_go", "scale_rewards": "none"}
    trainer = checked(folder, tmp_path, "dr_grpo", (1, 1, 1), "full", "branch", "k1-reward", **more)
    outputs, original = [], trainer._generate_and_score_completions

    def spy(inputs):
        output = original(inputs)
        with torch.no_grad():
            logp, entropy = full_logits(trainer.model, output, trainer.temperature)
            ref, _ = trainer.reference(output)
        mask = output["completion_mask"]
        per_token = (ref + shape("branch", logp, ref, entropy) - logp) * mask
        to_go = torch.stack([per_token[:, t:].sum(1) for t in range(mask.shape[1])], 1) * mask
        mean = to_go.view(-1, 4, mask.shape[1]).mean(1).repeat_interleave(4, 0)
        texts = trainer.processing_class.batch_decode(output["completion_ids"], skip_special_tokens=True)
        reward = torch.tensor(tiny.hash_reward(texts)).view(-1, 4)
        task = (reward - reward.mean(1, keepdim=True)).flatten()
        outputs.append((output["advantages"], task[:, None] + 0.2 * (to_go - mean) * mask))
        return output

    trainer._generate_and_score_completions = spy
    assert_equals_formula(trainer)
    for got, want in outputs:
        assert got.shape == want.shape
        assert torch.allclose(got, want, atol=1e-4)


# ---- passes, holding, schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "schedule", "tuning"), thinned(PASSES, SCHEDULES, TUNING))
def test_number_of_forward_passes(folder, tmp_path, case, schedule, tuning):
    """As many as plain GRPO's; what takes the whole batch one more, where TRL makes no pass of its own."""
    (more, extra), counts = case, {}
    for name, cls, config_cls, kwargs in (
        ("ours", SAGETrainer, SAGEConfig, more),
        ("trl", GRPOTrainer, GRPOConfig, {}),
    ):
        trainer = build(cls, config_cls, folder, tmp_path / name, tuning, **options("grpo", schedule, **kwargs))
        counts[name] = 0

        def count(*args, name=name):
            counts[name] += 1

        for m in {id(m): m for m in (trainer.model, trainer.ref_model) if m is not None}.values():
            inner = m.get_base_model() if hasattr(m, "get_base_model") else m
            inner.model.layers[0].register_forward_hook(count)
        trainer.train()
    aligned = schedule[0] % (schedule[1] * schedule[2]) == 0
    batches = 2  # max_steps = one rollout batch and the first step of the next
    chunks = schedule[1]  # a pass over a rollout batch goes in chunks of the train batch size
    assert counts["ours"] - counts["trl"] == (extra * batches * chunks if aligned else 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("guide", ["branch", "token"])
def test_held_log_q_is_one_tensor_for_all_updates_of_a_batch(folder, tmp_path, schedule, guide):
    uses = {}

    class Spy(SAGETrainer):
        def held_log_q(self, inputs, *rest):
            out = super().held_log_q(inputs, *rest)
            uses.setdefault((self._step // (schedule[1] * schedule[2]), id(inputs)), []).append(out)
            return out

    build(Spy, SAGEConfig, folder, tmp_path, "full", **options("grpo", schedule, guide=guide)).train()
    assert all(t is tensors[0] for tensors in uses.values() for t in tensors)
    if schedule[2] == 2:
        assert max(len(tensors) for tensors in uses.values()) == 2


def test_not_held_means_the_current_policy(folder, tmp_path):
    tensors = []

    class Spy(SAGETrainer):
        def held_log_q(self, inputs, *rest):
            out = super().held_log_q(inputs, *rest)
            tensors.append((id(inputs), out))
            return out

    shared = options("grpo", (2, 4, 2), guide="branch", guide_hold=False, guide_args={"q_max": 9.0})
    build(Spy, SAGEConfig, folder, tmp_path, "full", **shared).train()
    again = [(a, b) for i, (key, a) in enumerate(tensors) for other, b in tensors[i + 1 :] if other == key]
    assert again
    assert all(not torch.equal(a, b) for a, b in again), "the policy moved, and log q with it"


def test_schedules_advance_with_optimizer_steps(folder, tmp_path):
    steps = []

    class Spy(SAGETrainer):
        def _signals(self, *args):
            s = super()._signals(*args)
            steps.append((s.step, s.max_steps, self.state.global_step))
            return s

    shared = options("grpo", (2, 2, 1), guide="token", max_steps=3)
    build(Spy, SAGEConfig, folder, tmp_path, "full", **shared).train()
    assert sorted({s for s, _, _ in steps}) == [0, 1, 2]
    assert all(s == now for s, _, now in steps)
    assert {m for _, m, _ in steps} == {3}
    assert len(steps) == 6, "twice per optimizer step, once a micro-batch, with the same step"


def test_reference_entropies_reach_the_guide(folder, tmp_path):
    """source='reference', full fine-tuning: the separate model's entropies, against plain logits."""
    seen = []

    class Spy(SAGETrainer):
        def _signals(self, inputs, *rest):
            s = super()._signals(inputs, *rest)
            seen.append((s, {k: v.clone() for k, v in inputs.items() if k.endswith(("ids", "mask"))}))
            return s

    for tuning in TUNING:
        shared = options("grpo", (1, 1, 1), guide="branch", guide_args={"source": "reference"})
        trainer = build(Spy, SAGEConfig, folder, tmp_path, tuning, **shared)
        trainer.train()
        for s, inputs in seen:
            with torch.no_grad():
                if trainer.ref_model is not None:
                    _, entropy = full_logits(trainer.ref_model, inputs, trainer.temperature)
                else:
                    with trainer.model.disable_adapter():
                        _, entropy = full_logits(trainer.model, inputs, trainer.temperature)
            mask = inputs["completion_mask"].bool()
            assert torch.allclose(s.ref_entropies[mask], entropy[mask], atol=1e-4)
        seen.clear()


def test_tool_masks_are_left_intact(folder, tmp_path):
    """Tokens a tool wrote carry no penalty, no q and no part in the averages."""

    def with_tools(prompts, trainer):
        out = tiny.given_rollouts(prompts, trainer)
        out["env_mask"] = [[0 if 1 <= i <= 2 else 1 for i in range(len(ids))] for ids in out["completion_ids"]]
        return out

    seen = []

    class Spy(SAGETrainer):
        def held_log_q(self, inputs, logps, entropies, mask):
            out = super().held_log_q(inputs, logps, entropies, mask)
            seen.append((out, mask, inputs["tool_mask"]))
            return out

    args = tiny.config(SAGEConfig, tmp_path, guide="branch")
    Spy(folder, tiny.hash_reward, args, tiny.dataset(), rollout_func=with_tools).train()
    for log_q, mask, tool in seen:
        assert (tool[:, 1:3] == 0).all()
        assert (mask[:, 1:3] == 0).all()
        assert (log_q[:, 1:3] == 0).all()
        assert (log_q[mask.bool()] != 0).any()
