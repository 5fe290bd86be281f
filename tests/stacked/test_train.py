"""A stack's loss, gradient and step against SAGETrainer's, transformers' schedule and torch's AdamW."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from sage_rlvr.errors import UserError
from sage_rlvr.models.scratch import character_tokenizer, scratch_model
from sage_rlvr.stacked.credit import Batch, Credit
from sage_rlvr.stacked.measure import _piece, measure
from sage_rlvr.stacked.model import Prompts, Stack
from sage_rlvr.stacked.steps import AdamW, rates_of
from sage_rlvr.stacked.train import Run, counted, scored, train
from sage_rlvr.stacked.world import World
from sage_rlvr.tasks.countdown import THREE
from sage_rlvr.train import SAGEConfig, SAGETrainer
from tests.slow import but_few
from tests.train import tiny

GROUP = 4
CASES = {  # what a run's settings say beside the defaults below
    "grpo": {"guide": "none"},
    "k1": {"guide": "none", "anchor_estimator": "k1-reward", "scale_rewards": "none", "loss_type": "dr_grpo"},
    "branch": {"guide": "branch"},
    "tempered": {"guide": "tempered", "anchor_estimator": "k3+", "guide_center": "batch", "loss_type": "grpo"},
    "verified focal": {"guide": "verified", "anchor_estimator": "k1-reward", "advantage": "focal"},
    "group": {"guide": "group", "anchor_estimator": "k1-reward"},
    "value": {"guide": "value", "anchor_estimator": "k1-reward"},
    "rarity": {"guide": "none", "advantage": ["rarity", "focal"]},
    "smooth": {"guide": "none", "advantage": "smooth", "entropy_coef": 0.05},
    "alike": {"guide": "none", "advantage": "alike", "anchor_estimator": "k1-reward", "scale_rewards": "none"},
    "coverage": {"guide": "none", "advantage": "coverage"},
    "unlikely": {"guide": "none", "advantage": "unlikely", "beta": 0.0},
    "token guide": {"guide": "token"},
}


class Seen(SAGETrainer):
    """Keeps the first batch, its loss and the gradient of it."""

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if not hasattr(self, "batch"):
            grads = torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)
            self.grads = {name: g.clone() for (name, _), g in zip(self.model.named_parameters(), grads)}
            self.batch, self.loss = dict(inputs), loss.item()
            self.policy = copy.deepcopy(self.accelerator.unwrap_model(self.model))
        return loss

    def _calculate_rewards(self, *args):
        found = super()._calculate_rewards(*args)
        self.judged = found[:, 0].clone()
        return found


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("tiny") / "start")


@pytest.mark.parametrize("name", but_few(CASES, (3, 4, 6)))
def test_loss_and_gradient_are_sagetrainers(name, start, tmp_path):
    settings = {"beta": 0.2, "loss_type": "bnpo", "temperature": 1.0, "max_steps": 1} | CASES[name]
    trainer = tiny.build(start, tmp_path, Seen, num_generations=GROUP, per_device_train_batch_size=8, **settings)
    with torch.no_grad():  # away from the reference, so that the penalty is not 0
        for p in trainer.model.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    trainer.train()
    order = trainer.batch["sage_rows"].argsort()  # TRL shuffles a rollout batch; groups lie together here
    batch = {
        key: trainer.batch[key][order] for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    }
    prompts = Prompts(*(batch[f"prompt_{x}"][None, ::GROUP] for x in ("ids", "mask")))
    prompts = Prompts(prompts.ids, prompts.seen.bool())
    ids, mask = (batch[f"completion_{x}"].view(1, -1, GROUP, batch["completion_ids"].shape[1]) for x in ("ids", "mask"))
    policy = Stack.of(trainer.policy, 1)
    base = Stack.of(AutoModelForCausalLM.from_pretrained(start), 1)
    policy.trained()
    logps, entropies, states = scored(policy, prompts, ids)
    ref = scored(base, prompts, ids)[0].detach()
    args = trainer.args
    credit = Credit(args)
    flat = [x.flatten(0, 2) for x in (logps, entropies, ref, mask.bool(), states)]
    texts = [trainer.processing_class.decode(row, skip_special_tokens=True) for row in batch["completion_ids"]]
    answers = [t if r > 0 else None for t, r in zip(texts, trainer.judged.tolist())] if credit.reads_answers else None
    loss, told = credit.loss(Batch(*flat, trainer.judged, answers), 0)
    assert 0 < trainer.judged.mean() < 1
    assert loss.item() == pytest.approx(trainer.loss, rel=1e-4, abs=1e-6)
    loss.backward()
    for name, theirs in trainer.grads.items():
        mine = policy.weights[name].grad[0]
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-4 * theirs.abs().max() + 1e-7), name
    assert told["reward"].item() == pytest.approx(trainer.judged.mean().item())


def test_steps_are_torchs_adamw_with_transformers_decay_and_clipping():
    torch.manual_seed(0)
    shapes = {"a.weight": (3, 4), "a.bias": (4,), "model.norm.weight": (4,)}
    mine = {name: torch.randn(2, *shape) for name, shape in shapes.items()}
    theirs = [{name: torch.nn.Parameter(p[r].clone()) for name, p in mine.items()} for r in range(2)]
    rates = [0.1, 0.02]
    optimizers = [
        torch.optim.AdamW(
            [{"params": [own["a.weight"]], "weight_decay": 0.1},
             {"params": [own["a.bias"], own["model.norm.weight"]], "weight_decay": 0.0}], lr=rate)
        for own, rate in zip(theirs, rates)
    ]  # fmt: skip
    stacked = AdamW(mine, decay=0.1, clip=1.0)
    for step in range(5):
        grads = {name: torch.randn(2, *shape) * 10 ** (step - 2) for name, shape in shapes.items()}
        for name, p in mine.items():
            p.grad = grads[name].clone()
        norms = stacked.step(torch.tensor(rates))
        for r, (own, optimizer) in enumerate(zip(theirs, optimizers)):
            for name, p in own.items():
                p.grad = grads[name][r].clone()
            assert torch.nn.utils.clip_grad_norm_(own.values(), 1.0).item() == pytest.approx(norms[r].item(), rel=1e-5)
            optimizer.step()
    for r, own in enumerate(theirs):
        for name, p in own.items():
            assert torch.allclose(mine[name][r], p.detach(), rtol=1e-5, atol=1e-6)


def test_the_schedule_warms_up_and_falls():
    assert rates_of(1.0, 4, 2, "linear") == pytest.approx([0.0, 0.5, 1.0, 0.5])


# ---- whole runs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model of three-number countdown, untaught, and its world."""
    from sage_rlvr.tasks import get_task

    folder = scratch_model(tmp_path_factory.mktemp("scratch") / "m", "0123456789+-*=: ", width=32, layers=2)
    model = AutoModelForCausalLM.from_pretrained(folder)
    world = World(THREE, character_tokenizer("0123456789+-*=: "), "cpu")
    return model, world, world.problems(get_task(THREE).generate(40, 0, "train"))


def config(**more):
    defaults = {
        "output_dir": "", "use_cpu": True, "per_device_train_batch_size": 32, "num_generations": 8, "max_steps": 4,
        "max_completion_length": 8, "learning_rate": 1e-3, "loss_type": "bnpo", "guide": "none", "report_to": "none",
        "max_grad_norm": 1.0,
    }  # fmt: skip
    return SAGEConfig(**(defaults | more))


class Short(World):
    """Right is what ends soon: an untaught model meets that by chance, and a right answer never."""

    def right(self, problems, which, ids):
        return counted(ids, self.end).sum(-1) <= 3


def ran(small, runs, world=None):
    model, own, problems = small
    stack = Stack.of(model, len(runs))
    train(runs, stack, Stack.of(model, 1), world or Short(THREE, own.tokenizer, "cpu"), problems)
    return stack


def test_a_run_is_the_same_whatever_it_is_stacked_with(small):
    arms = [config(seed=1), config(seed=2, beta=0.5, learning_rate=3e-3), config(seed=1, advantage="rarity")]
    runs = [Run(str(i), args) for i, args in enumerate(arms)]
    together, alone = ran(small, runs), ran(small, [Run("1", arms[1])])
    for name, p in together.weights.items():
        assert torch.allclose(p[1], alone.weights[name][0], atol=1e-4), name
    embeddings = together.weights["model.embed_tokens.weight"]
    assert not torch.allclose(embeddings[0], embeddings[1]), "another seed, rate and β"
    assert not torch.allclose(embeddings[0], embeddings[2]), "another advantage"
    assert [len(run.log) for run in runs] == [4, 4, 4]


def test_what_is_paid_for_is_learned(small):
    free, held = (Run(str(beta), config(max_steps=30, learning_rate=1e-2, beta=beta)) for beta in (0.0, 10.0))
    ran(small, [free, held])
    first, last = (float(free.log[i]["reward"]) for i in (0, -1))
    assert last > first + 0.3
    assert float(held.log[-1]["reward"]) < last - 0.2, "a strong pull keeps it where it was"
    assert float(held.log[-1]["kl_ref"]) < float(free.log[-1]["kl_ref"])


def test_a_run_that_diverges_stops_alone(small):
    """At a rate of 1e30 every weight is infinite after a step; the run beside it does not notice."""
    odd, fine = Run("odd", config(learning_rate=1e30)), Run("fine", config(seed=2))
    together = ran(small, [odd, fine])
    alone = ran(small, [Run("fine", config(seed=2))])
    assert odd.diverged in (2, 3)
    assert (fine.diverged, len(fine.log)) == (None, 4)
    for name, p in together.weights.items():
        assert torch.allclose(p[1], alone.weights[name][0], atol=1e-4), name


def test_a_gradient_that_is_not_finite_moves_nothing():
    weights = {"a.weight": torch.ones(2, 3)}
    optimizer = AdamW(weights, decay=0.1)
    weights["a.weight"].grad = torch.tensor([[1.0, torch.inf, 1.0], [1.0, 1.0, 1.0]])
    optimizer.step(torch.tensor([0.1, 0.1]))
    assert (weights["a.weight"][0] == 1).all()
    assert (weights["a.weight"][1] < 1).all()


def test_a_random_reward_pays_by_chance_and_tells_the_truth(small):
    run = Run("chance", config(max_steps=6), chance=0.5)
    ran(small, [run], small[1])
    paid = sum(float(entry["reward"]) for entry in run.log) / 6
    assert 0.35 < paid < 0.65
    assert all(float(entry["sage/true_reward"]) < 0.2 for entry in run.log)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("top_k", 5),
        ("temperature", 0.7),
        ("advantage", "kl_cov"),
        ("num_iterations", 2),
        ("keep_batch", 3),
        ("loss_type", "dapo"),
    ],
)
def test_what_the_stack_has_no_code_for_is_refused_by_name(small, setting, value):
    more = {"steps_per_generation": 2} if setting == "advantage" else {}
    with pytest.raises(UserError, match=setting):
        ran(small, [Run("odd", config(**{setting: value}, **more))])


def test_runs_of_different_sizes_are_refused(small):
    with pytest.raises(UserError, match="max_steps"):
        ran(small, [Run("a", config()), Run("b", config(max_steps=5))])


def test_pieces_are_of_one_size_where_that_is_near():
    assert [_piece(500, 24), _piece(500, 600), _piece(499, 24), _piece(40, 1)] == [20, 500, 24, 1]


def test_counts_are_of_every_problem_and_runs_are_paired(small):
    model, world, problems = small
    found = measure(Stack.of(model, 2), world, problems, n=5, seeds=[0, 1], length=8)
    assert found.right.shape == (2, 40, 2)
    assert (found.right[0] == found.right[1]).all(), "equal models, equal draws"
    assert (found.tokens[0] == found.tokens[1]).all()
    cells = found.cells(0)
    assert list(cells["problems"]) == [p.id for p in problems.all]
    assert all(wrong + sum(times.values()) == 5 for cell in cells["problems"].values() for wrong, times, _ in cell)
