"""Two real processes over gloo against one process with the same global batch, on the same injected rollouts."""

import pytest
import torch

from .. import forked
from . import keeping, run_pair, tiny


def launch(processes, folder, cases, env=None, **job):
    """Every case in one start of the processes, which find each other as torchrun's would: what each gave, by name."""
    save, model = folder / "saved.pt", folder / "model"
    job = {"cases": cases, "save": str(save), "model": tiny.folder(model), "out": str(folder / "out")} | job
    if processes > 1:
        forked.ranks(run_pair.main, job, processes=processes, env=env)
    else:
        done = forked.run(run_pair.main, job, timeout=1200)
        assert done.returncode == 0, done.stderr[-3000:]
    saved = torch.load(save, weights_only=True)
    assert {case["world"] for case in saved.values()} == {processes}
    return saved


TAUGHT = {"rate": 0.1, "kappa": 20.0}
CASES = {
    "branch k3 grpo": {"guide": "branch"},
    "branch k3 grpo, lora": {"guide": "branch", "lora": True},
    "random k3": {"guide": "random", "guide_args": {"epsilon": 1.0}},
    "random k3, lora": {"guide": "random", "guide_args": {"epsilon": 1.0}, "lora": True},
    "token k2 dapo": {"guide": "token", "anchor_estimator": "k2", "loss_type": "dapo"},
    "exact credit, groups across ranks": {
        "guide": "branch", "anchor_estimator": "k1-reward", "loss_type": "dr_grpo", "scale_rewards": "none", "global_rows": 4,
    },
    "random k1-reward, lora, groups across ranks": {
        "guide": "random", "anchor_estimator": "k1-reward", "loss_type": "dr_grpo", "scale_rewards": "none", "global_rows": 4,
        "lora": True,
    },
    "to_go, lora": {"guide": "tempered", "anchor_estimator": "k1-reward", "anchor_credit": "to_go", "lora": True},
    "random, centred, accumulated": {
        "guide": "random", "guide_args": {"epsilon": 1.0}, "guide_center": "batch", "gradient_accumulation_steps": 2,
    },
    "a quantile, accumulated": {
        "guide": "branch-quantile", "guide_args": {"quantile": 0.5}, "gradient_accumulation_steps": 2,
    },
    "a quantile, lora, used twice": {
        "guide": "tempered-quantile", "guide_args": {"level": True}, "anchor_estimator": "k3+", "num_iterations": 2, "lora": True,
    },
    "a quantile, micro-batches, centred": {
        "guide": "tempered-quantile", "guide_args": {"quantile": 0.5}, "guide_center": "batch", "tokens_per_microbatch": 40,
    },
    "group, groups across ranks": {
        "guide": "group", "anchor_estimator": "k1-reward", "loss_type": "dr_grpo", "scale_rewards": "none", "global_rows": 4,
    },
    "value, micro-batches": {"guide": "value", "guide_args": TAUGHT, "tokens_per_microbatch": 40},
    "value, lora, accumulated": {"guide": "value", "guide_args": TAUGHT, "lora": True, "gradient_accumulation_steps": 2},
    "kept answers": {"guide": "branch", "keep_from": "kept", "keep_batch": 5, "keep_coef": 0.5},
    "kept answers, js, lora, accumulated": {
        "guide": "none", "beta": 0.0, "keep_from": "kept", "keep_batch": 5, "keep_coef": 5.0, "keep_divergence": "js",
        "lora": True, "gradient_accumulation_steps": 2,
    },
    "one kept answer, micro-batches": {
        "guide": "none", "keep_from": "kept", "keep_batch": 1, "keep_coef": 0.5, "tokens_per_microbatch": 20,
    },
    "paid by chance": {"guide": "none", "chance": 0.6},
    "dynamic sampling, beta": {
        "guide": "branch", "dynamic_sampling": 3, "advantage": "beta", "loss_type": "dapo", "flat": True,
    },
    "rarity and focal, groups across ranks": {"guide": "none", "advantage": ["rarity", "focal"], "global_rows": 4},
    "unlikely, lora, micro-batches": {"guide": "branch", "advantage": "unlikely", "tokens_per_microbatch": 40, "lora": True},
    "coverage, drawn again, exact credit": {
        "guide": "branch", "advantage": "coverage", "dynamic_sampling": 2, "flat": True, "anchor_estimator": "k1-reward",
        "loss_type": "dr_grpo", "scale_rewards": "none",
    },
    "an anchor reset": {"guide": "branch", "anchor_reset": 2},
    "an anchor reset, lora": {"guide": "branch", "anchor_reset": 2, "lora": True},
    "clipped tokens, groups across ranks, drawn again": {
        "guide": "none", "advantage": "clip_cov", "advantage_args": {"share": 0.1, "low": 0.05}, "dynamic_sampling": 2,
        "global_rows": 4, "flat": True,
    },
    "held tokens, used twice, lora": {
        "guide": "none", "advantage": "kl_cov", "advantage_args": {"share": 0.1}, "num_iterations": 2, "loss_type": "dapo",
        "lora": True,
    },
    "uncertain tokens of rare answers, micro-batches": {
        "guide": "branch", "advantage": ["rarity", "focal", "entropy"], "tokens_per_microbatch": 40,
    },
}  # fmt: skip
STEPS = {"max_steps": 3, "learning_rate": 1e-3, "shuffle_dataset": False}
ROW_METRICS = (
    "reward", "reward_std", "frac_reward_zero_std", "sage/zero_variance_groups", "sage/flat_groups_left",
    "sage/distinct_answers", "sage/bonus_abs", "sage/bonus_to_reward", "sage/bonus_length_correlation",
    "sage/anchor_resets", "sage/tokens_shaped", "sage/true_reward", "completions/mean_length", "num_tokens", "grad_norm",
    "sage/kept_loss", "sage/kept_logp",
)  # fmt: skip
TOKEN_METRICS = ("kl", "kl_ref", "entropy", "sage/pseudo_kl", "sage/q_mean", "sage/q_min", "sage/q_max", "sage/active")


QUICK = {
    "branch k3 grpo, lora",
    "random k3",
    "exact credit, groups across ranks",
    "a quantile, accumulated",
    "an anchor reset",
}


def each(*parts):
    """The cases whose names have one of these; all but the quick ones are slow."""
    names = [name for name in CASES if any(part in name for part in parts)]
    return pytest.mark.parametrize(
        "case", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in names]
    )


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Of the cases that are asked for in this session."""
    asked = {item.callspec.params["case"] for item in request.session.items if item.module is request.module}
    start = tiny.folder(tmp_path_factory.mktemp("start"))
    kept = {"keep_from": keeping.folder(tmp_path_factory.mktemp("of") / "kept", start)}
    cases = {
        name: STEPS | options | (kept if "keep_from" in options else {})
        for name, options in CASES.items()
        if name in asked
    }
    return [launch(n, tmp_path_factory.mktemp(str(n)), cases) for n in (1, 2)]


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors.values()])


def near(losses):
    """Relative 1e-5; of the run's largest where centred advantages cancel and a step's loss is next to nothing."""
    return pytest.approx(losses, rel=1e-5, abs=1e-5 * max(map(abs, losses)))


@each("")
def test_two_processes_give_the_losses_gradients_and_weights_of_one(runs, case):
    one, two = (run[case] for run in runs)
    assert len(one["losses"]) == STEPS["max_steps"]
    assert two["losses"] == near(one["losses"])
    assert all(one["losses"])
    for a, b in zip(one["grads"], two["grads"], strict=True):
        assert a.keys() == b.keys()
        assert float((flat(a) - flat(b)).norm() / flat(a).norm()) < 1e-5
    assert any("lora" in n for n in one["grads"][0]) == bool(CASES[case].get("lora"))
    assert flat(two["weights"]) == pytest.approx(flat(one["weights"]), rel=1e-5, abs=1e-5)


def same_metrics(one, two, keys):
    for a, b in zip(one["log"], two["log"], strict=True):
        for key in keys:
            assert (key in a) == (key in b), key
            if a.get(key) is None:  # not there, or NaN: a ratio to nothing
                assert b.get(key) is None, key
            else:
                near_0 = 1e-5 if "correlation" in key else 1e-6  # of two rows of numbers, as a difference of large sums
                assert b[key] == pytest.approx(a[key], rel=1e-5, abs=near_0), key


@each("")
def test_metrics_are_over_all_rows_not_over_a_ranks_own(runs, case):
    keys = ROW_METRICS
    if "gradient_accumulation_steps" not in CASES[case]:  # else tokens are averaged slice by slice, and slices differ
        keys += TOKEN_METRICS
    same_metrics(runs[0][case], runs[1][case], keys)


@each("random", "token k2")
def test_noise_belongs_to_the_row_not_to_the_rank(runs, case):
    one, two = (run[case]["log_q"] for run in runs)
    rows = CASES[case].get("global_rows", 8)
    if "gradient_accumulation_steps" not in CASES[case]:  # else the same rows come in other micro-batches
        assert one.keys() == two.keys()
        assert {row for _, row in one} == set(range(rows))
        for place, q in one.items():
            assert q == pytest.approx(two[place], abs=1e-5)
    per_rank = rows // 2
    same = [q == two.get((step, row + per_rank)) for (step, row), q in two.items() if row < per_rank]
    assert not any(same), "two ranks drew the same noise"


@each("quantile")
def test_a_quantile_is_of_all_ranks_rows(runs, case):
    slices, uses = (CASES[case].get(name, 1) for name in ("gradient_accumulation_steps", "num_iterations"))
    one, two = ({(step // slices // uses, row): q for (step, row), q in run[case]["log_q"].items()} for run in runs)
    assert one.keys() == two.keys()
    assert {row for _, row in one} == set(range(8 * slices))
    assert any(x for q in one.values() for x in q)
    for place, q in one.items():
        assert q == pytest.approx(two[place], abs=1e-5)


def one_reset(log):
    """After the second of three steps: the third finds the policy at its reference."""
    return [entry["sage/anchor_resets"] for entry in log] == [0, 1, 1] and log[1]["kl_ref"] > 0 == log[2]["kl_ref"]


@each("reset")
def test_every_ranks_reference_becomes_the_policy(runs, case):
    assert [one_reset(run[case]["log"]) for run in runs] == [True, True]


@each("value")
def test_every_rank_has_the_head_that_one_process_would_have(runs, case):
    (one,), (first, second) = (run[case]["head"] for run in runs)
    assert torch.equal(first, second), "to the last bit"
    assert one.tolist() == pytest.approx(first.tolist(), rel=1e-4, abs=1e-4)
    assert one.any()


@each("random k3")
def test_what_rank_0_decides_holds_everywhere(runs, case):
    assert [run[case]["agreed"] for run in runs] == [[0], [0, 0]]
