"""``algorithm.adv_estimator=sage``: the advantages that verl writes, from a real TransferQueue through verl's own step, against
formulas written out here, row by row."""

import math
import statistics
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transfer_queue as tq
from test_build import ACTOR, build, refused
from test_driver import REWARD, a_batch, read, trainer_of
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, compute_grpo_outcome_advantage
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from sage_rlvr.advantage import Advantage, make_advantage
from sage_rlvr.errors import UserError
from sage_rlvr.integrations.verl import estimator

SAGE = "algorithm.adv_estimator=sage"


def uid_of(key):
    return key.rsplit("_", 2)[0]


@pytest.fixture
def advantages(cluster, toy, monkeypatch):
    """(overrides) → rows with their uid, and the advantage that verl wrote for each. Its reference pass is not run: the
    reference is in the queue already."""
    monkeypatch.setattr(PPOTrainerSync, "_compute_ref_log_prob", lambda self, batch, metrics: batch)

    def run(*overrides, step=1, total=10, order=3, padding=2, change=None, prompts=3):
        trainer = trainer_of(toy(*overrides), step, total)
        batch, rows, _ = a_batch(trainer, order=order, padding=padding, prompts=prompts)
        for key, row in zip(batch.keys, rows):
            row["key"] = key
        if change is not None:
            batch, rows = change(batch, rows)
        if trainer.use_reference_policy:
            trainer._compute_ref_log_prob(batch, {})
        trainer._compute_advantage(batch, {})
        got = read(batch, "advantages")["advantages"]
        tq.kv_clear(keys=batch.keys, partition_id="train")
        out = []
        for row, line in zip(rows, got):
            on = row["response_mask"].bool()
            line = line[: len(on)]
            assert (line[~on] == 0).all()
            if on.any():
                assert (line[on] == line[on][0]).all()
                out.append(line[on][0].item())
            else:
                out.append(0.0)
        return rows, out

    return run


def by_prompt(rows):
    """[[row, …], …], a prompt's together, verl's padding left out."""
    found = {}
    for i, row in enumerate(rows):
        if not row["uid"].startswith("pad"):
            found.setdefault(row["uid"], []).append(i)
    assert len({len(f) for f in found.values()}) == 1
    return list(found.values())


def score(row):
    return float(row["rm_scores"].sum())


def mean_of(row, name):
    on = row["response_mask"].bool()
    return float(row[name][on].double().mean())


def scaled(pay, by_std):
    mean = statistics.fmean(pay)
    return [(x - mean) / ((statistics.stdev(pay) + 1e-4) if by_std else 1) for x in pay]


def expected(rows, of_group):
    out = [0.0] * len(rows)
    for where in by_prompt(rows):
        for i, value in zip(where, of_group([rows[i] for i in where])):
            out[i] = value
    return out


def rarity_focal(group, by_std):
    right = [mean_of(r, "ref_log_prob") for r in group if score(r)]
    usual = statistics.fmean(right) if right else 1.0
    pay = [score(r) * mean_of(r, "ref_log_prob") / usual for r in group]
    wrong = 1 - statistics.fmean(score(r) for r in group)
    return [a * wrong**0.5 for a in scaled(pay, by_std)]


BOTH = ("+sage.advantage=[rarity,focal]", "+sage.advantage_args={focal: {gamma: 0.5}}", SAGE)


@pytest.mark.parametrize("by_std", [True, False])
@pytest.mark.parametrize("guide", ["none", "tempered"])
def test_rarity_and_focal(advantages, by_std, guide):
    """Rows of a prompt lie apart, with padding between; the surprisal is under π_ref, not under what a guide made of it."""
    rows, got = advantages(*BOTH, f"+sage.guide={guide}", f"algorithm.norm_adv_by_std_in_grpo={by_std}")
    uids = [row["uid"] for row in rows]
    assert sum(a != b for a, b in pairwise(uids)) > 5  # not adjacent
    want = expected(rows, lambda group: rarity_focal(group, by_std))
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
    assert max(map(abs, want)) > 0.1


def test_k1_reward_is_added_unshaped_and_centred(advantages):
    rows, got = advantages(*BOTH, "+sage.guide=tempered", "+sage.guide_args={threshold: 0.5}", *REWARD)

    def bonus(row):  # β·(log q·π_ref − log π), summed over what counts
        kappa = (0.5 * (row["entropy"] - 0.5).clamp(min=0)).clamp(max=0.5)
        shaped = row["ref_log_prob"] * (1 - kappa)
        return 0.3 * float(((shaped - row["old_log_probs"]) * row["response_mask"]).double().sum())

    def of_group(group):
        paid = [bonus(r) for r in group]
        return [a + b - statistics.fmean(paid) for a, b in zip(rarity_focal(group, False), paid)]

    assert got == pytest.approx(expected(rows, of_group), rel=1e-3, abs=1e-4)


def test_a_count_of_right_answers_sees_what_was_judged_under_k1_reward(advantages):
    """passk takes rewards of 0 and 1 alone: a KL among them would be refused."""
    rows, got = advantages(
        "+sage.advantage=passk", "+sage.advantage_args={k: 2}", SAGE, *REWARD, "algorithm.kl_ctrl.kl_coef=0.0"
    )

    def of_group(group):
        n, c = len(group), sum(score(r) for r in group)
        rho = 1 - math.comb(n - int(c), 2) / math.comb(n, 2)
        if rho in (0, 1):
            return [0.0] * n
        sigma = (rho * (1 - rho)) ** 0.5
        return [(1 - rho if score(r) else 1 - rho - (n - c - 1) / (n - 1)) / sigma for r in group]

    assert got == pytest.approx(expected(rows, of_group), rel=1e-5, abs=1e-6)
    advantages("+sage.advantage=passk", "+sage.advantage_args={k: 2}", SAGE, *REWARD)  # and with a KL it is not


def test_log_probs_are_the_policys_means_per_counted_token(advantages):
    rows, got = advantages("+sage.advantage=smooth", "+sage.advantage_args={gamma: 0.2}", SAGE)

    def of_group(group):
        plain = scaled([score(r) for r in group], True)
        return [a + 0.2 * mean_of(r, "old_log_probs") * (-1 if score(r) else 1) for a, r in zip(plain, group)]

    assert got == pytest.approx(expected(rows, of_group), rel=1e-4, abs=1e-5)


def test_alike_sees_whole_completions(advantages):
    rows, got = advantages("+sage.advantage=alike", "+sage.advantage_args={beta: 0.3}", SAGE, *REWARD)

    def of_group(group):
        whole = [float((r["ref_log_prob"] * r["response_mask"]).double().sum()) for r in group]
        top = max((w for w, r in zip(whole, group) if score(r)), default=0.0)
        pay = [score(r) and 1 + 0.3 * (top - w) for w, r in zip(whole, group)]
        kl = [0.3 * (w - float((r["old_log_probs"] * r["response_mask"]).double().sum())) for w, r in zip(whole, group)]
        return [p - statistics.fmean(pay) + k - statistics.fmean(kl) for p, k in zip(pay, kl)]

    assert got == pytest.approx(expected(rows, of_group), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("step", "k"), [(1, 3), (3, 2), (5, 1), (10, 1)])
def test_pkpo_falls_with_the_runs_optimizer_steps(advantages, step, k):
    """10 rollout batches of two updates each; k goes from 3 to 1 over the first 8 of 20 updates."""
    rows, got = advantages(
        "+sage.advantage=pkpo", "+sage.advantage_args={k: 3, anneal: 0.4}", SAGE, step=step, total=10
    )

    def of_group(group):
        n, c = len(group), int(sum(score(r) for r in group))
        if c in (0, n):
            return [0.0] * n

        def pass_at(n, c, k):
            return 1 - math.comb(n - c, k) / math.comb(n, k)

        return [
            1 - pass_at(n - 1, c - 1, k) if score(r) else pass_at(n - 1, c, k - 1) - pass_at(n - 1, c, k) for r in group
        ]

    assert got == pytest.approx(expected(rows, of_group), rel=1e-5, abs=1e-6)


def test_coverage_takes_the_answers_that_the_reward_function_told(advantages):
    told = {}

    def change(batch, rows):
        extra = []
        for i, row in enumerate(rows):
            told[row["key"]] = [None, "7", 7, "8"][i % 4]
            info = {"pred": told[row["key"]]} if i % 4 else {}
            extra.append({"extra_fields": {"reward_extra_info": info}})
        tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=list_of_dict_to_tensordict(extra))
        return batch, rows

    ask = ("+sage.advantage=coverage", SAGE, "algorithm.norm_adv_by_std_in_grpo=False")
    rows, got = advantages(*ask, "+sage.answer=pred", change=change)

    def of_group(group):
        own = [None if told[r["key"]] is None else str(told[r["key"]]) for r in group]
        right = [a for a, r in zip(own, group) if score(r)]
        return scaled([score(r) / (1 if a is None else max(1, right.count(a))) for a, r in zip(own, group)], False)

    assert got == pytest.approx(expected(rows, of_group), rel=1e-5, abs=1e-6)
    with pytest.raises(UserError, match=r"sage\.answer=guess: the reward function answered no 'guess'"):
        advantages(*ask, "+sage.answer=guess", change=change)


# ---- verl's own ----------------------------------------------------------------------------------------------------


def several_outputs(batch, rows):
    """The first session of each prompt has answered twice; the earlier output has a reward of its own, to be passed over."""
    keys, out = list(batch.keys), list(rows)
    for i, (key, row) in enumerate(zip(batch.keys, rows)):
        uid, session, _ = key.rsplit("_", 2)
        if session == "0" and not uid.startswith("pad"):
            length = len(row["response_mask"])
            early = {k: v for k, v in row.items() if k != "key"} | {"rm_scores": torch.full((length,), 0.7)}
            later = f"{uid}_0_1"
            tq.kv_batch_put(
                keys=[later], partition_id="train", tags=[{}],
                fields=list_of_dict_to_tensordict([{k: v for k, v in row.items() if k != "key"}]),
            )  # fmt: skip
            tq.kv_batch_put(keys=[key], partition_id="train", fields=list_of_dict_to_tensordict([early]))
            keys.append(later)
            out[i] = early | {"key": key}
            out.append(row | {"key": later})
    return tq.KVBatchMeta(partition_id="train", keys=keys, tags=[{}] * len(keys)), out


@pytest.mark.parametrize("by_std", [True, False])
def test_unset_is_verls_grpo_bit_for_bit_and_group_is_it_in_numbers(advantages, by_std):
    norm = f"algorithm.norm_adv_by_std_in_grpo={by_std}"
    for change in (None, several_outputs):
        _, theirs = advantages("+sage.guide=none", "algorithm.adv_estimator=grpo", norm, change=change)
        _, unset = advantages("+sage.guide=none", SAGE, norm, change=change)
        _, group = advantages("+sage.advantage=group", SAGE, norm, change=change)
        assert unset == theirs
        assert group == pytest.approx(theirs, rel=3e-4, abs=1e-6)  # 1e-4 beside the std where verl has 1e-6
        assert max(map(abs, theirs)) > 0.4


def test_std_scaling_is_the_only_difference_that_verls_field_makes(advantages):
    _, scaled_ = advantages("+sage.advantage=group", SAGE)
    _, plain = advantages("+sage.advantage=group", SAGE, "algorithm.norm_adv_by_std_in_grpo=False")
    assert max(abs(a - b) for a, b in zip(scaled_, plain)) > 0.1


def test_it_stands_in_verls_own_table(toy):
    assert ADV_ESTIMATOR_REGISTRY["sage"] is estimator.sage
    rewards, mask = torch.zeros(2, 3), torch.ones(2, 3)
    with pytest.raises(UserError, match=r"adv_estimator=sage was asked outside .*trainer_mode=sage_sync"):
        estimator.sage(token_level_rewards=rewards, response_mask=mask, index=np.array(["a", "a"]), config=None)
    told = estimator.Told(make_advantage("group"), ["a_0_0", "a_1_0"], 0, 1)
    with estimator.told(told):
        got, returns = estimator.sage(token_level_rewards=torch.eye(2, 3), response_mask=mask, index=None, config=None)
    want, _ = compute_grpo_outcome_advantage(torch.eye(2, 3), mask, np.array(["a", "a"]))
    torch.testing.assert_close(got, want)
    assert torch.equal(got, returns)
    assert told.used


def test_an_estimator_that_verl_did_not_ask_stops_the_run(toy, monkeypatch):
    trainer = trainer_of(toy("+sage.advantage=maxrl", SAGE))
    monkeypatch.setattr(PPOTrainerSync, "_compute_advantage", lambda self, batch, metrics: batch)
    with pytest.raises(RuntimeError, match=r"step 1 without sage\.advantage"):
        trainer._compute_advantage(SimpleNamespace(keys=["a_0_0"]), {})


def test_a_nan_reward_is_said():
    told = estimator.Told(make_advantage("group"), ["a_0_0", "a_1_0"], 0, 1)
    with pytest.raises(UserError, match="a reward is NaN, and verl's rewards are numbers"):
        estimator.per_trajectory(told, torch.tensor([1.0, torch.nan]))


# ---- groups --------------------------------------------------------------------------------------------------------


def test_groups_put_a_prompts_sessions_together_by_their_last_output():
    keys = ["b_1_0", "pad7_0_0", "a_10_0", "b_0_0", "a_2_1", "a_2_0", "pad7_1_0", "b_0_2", "b_0_1"]
    rows, group, place = estimator.groups(keys)
    assert [keys[i] for i in rows] == ["a_2_1", "a_10_0", "b_0_2", "b_1_0"]
    assert group == 2
    assert place.tolist() == [3, -1, 1, 2, 0, 0, -1, 2, 2]


def test_a_prompt_with_a_failed_session_is_compared_with_what_it_has():
    """verl keeps such groups and goes on: a run on many machines must not end with one session."""
    keys = ["b_0_0", "a_0_0", "a_1_0", "a_3_0", "b_1_0", "b_2_0", "b_3_0", "pad_0_0"]
    scores = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 5.0])
    bonus = torch.tensor([0.1, 0.2, 0.6, 0.1, 0.3, 0.0, 0.0, 9.0])
    rows, group, _ = estimator.groups(keys)
    assert group == 4
    assert rows.tolist() == [1, 2, 3, -1, 0, 4, 5, 6]
    told = estimator.Told(make_advantage("maxrl"), keys, 0, 1, scores=scores)
    got = estimator.per_trajectory(told, scores + bonus)
    of_a = [
        2 + 0.2 - 0.3,
        -1 + 0.6 - 0.3,
        -1 + 0.1 - 0.3,
    ]  # (r − p)/p with p = 1/3, and the bonus minus its mean of three
    of_b = [-1 + 0.0, 1 / 3 + 0.2, 1 / 3 - 0.1, 1 / 3 - 0.1]
    assert got.tolist() == pytest.approx([of_b[0], *of_a, *of_b[1:], 0.0], abs=1e-6)
    told = estimator.Told(make_advantage("coverage"), keys, 0, 1, answers=["x", "y", None, None, "z", "z", "w", None])
    assert torch.isfinite(estimator.per_trajectory(told, scores)).all()


# ---- what is refused when the trainer is built ---------------------------------------------------------------------

NO_KL = f"{ACTOR}.use_kl_loss=False"
N4 = "actor_rollout_ref.rollout.n=4"
REFUSED = {
    "another estimator": (["+sage.advantage=maxrl"], ["sage.advantage=maxrl", "adv_estimator=grpo", "adv_estimator=sage"]),
    "rloo": (["+sage.advantage=maxrl", "algorithm.adv_estimator=rloo"], ["adv_estimator=rloo", "adv_estimator=sage"]),
    "no reference": (["+sage.advantage=rarity", SAGE, NO_KL], ["sage.advantage=rarity needs a reference", "use_kl_loss=True"]),
    "no reference, among others": (["+sage.advantage=[focal,rarity]", SAGE, NO_KL], ["rarity needs", "kl_loss_coef=0"]),
    "no answers": (["+sage.advantage=coverage", SAGE], ["sage.advantage=coverage", "+sage.answer=pred"]),
    "clip_cov": (["+sage.advantage=clip_cov", SAGE], ["policy_loss.loss_mode=clip_cov."]),
    "kl_cov, among others": (["+sage.advantage=[focal,kl_cov]", SAGE], ["sage.advantage=kl_cov", "loss_mode=kl_cov."]),
    "entropy": (["+sage.advantage=entropy", SAGE], ["each token its own", "loss_mode=clip_cov or kl_cov"]),
    "a user's own of tokens": (["+sage.advantage=test_advantage:OfTokens", SAGE], ["each token its own", "=clip_cov or"]),
    "a need that verl has not": (["+sage.advantage=test_advantage:Odd", SAGE], ["needs weather", "verl does not compute"]),
    "k above n": (["+sage.advantage=passk", "+sage.advantage_args={k: 5}", SAGE, N4], ["k=5", "actor_rollout_ref.rollout.n"]),
    "k at n": (["+sage.advantage=pkpo", "+sage.advantage_args={k: 4}", SAGE, N4], ["k=4", "actor_rollout_ref.rollout.n"]),
    "arguments of none": (["+sage.guide=none", "+sage.advantage_args={k: 4}", SAGE], ["advantage_args", "sage.advantage is not"]),
    "answers of none": (["+sage.guide=none", "+sage.answer=pred", SAGE], ["sage.answer", "sage.advantage is not"]),
    "unknown": (["+sage.advantage=maxlr", SAGE], ["maxlr", "maxrl"]),
    "unknown argument": (["+sage.advantage=focal", "+sage.advantage_args={gama: 1}", SAGE], ["gama", "gamma"]),
    "argument without a name": (
        ["+sage.advantage=[rarity,focal]", "+sage.advantage_args={gamma: 1}", SAGE], ["gamma", "{focal: {gamma: 0.5}}"],
    ),
    "two of a kind": (["+sage.advantage=[maxrl,focal]", SAGE], ["'maxrl' and 'focal'", "keep one"]),
    "a number": (["+sage.advantage=3", SAGE], ["sage.advantage=3", "a name, or a list"]),
    "scale against verl's field": (
        ["+sage.advantage=group", "+sage.advantage_args={scale: none}", SAGE], ["scale=none", "norm_adv_by_std_in_grpo=True"],
    ),
    "scale against verl's field, the other way": (
        ["+sage.advantage=[group,focal]", "+sage.advantage_args={group: {scale: batch}}", SAGE, REWARD[2]],
        ["scale=batch", "norm_adv_by_std_in_grpo=False"],
    ),
    "std with the KL in the reward": (
        ["+sage.advantage=focal", SAGE, *REWARD[:2]], ["not the KL", "norm_adv_by_std_in_grpo=False"],
    ),
    "alike with another coefficient": (
        ["+sage.advantage=alike", SAGE, *REWARD], ["beta=0.05", "algorithm.kl_ctrl.kl_coef=0.3", "{beta: 0.3}"],
    ),
    "log-probs after truncation": (
        ["+sage.advantage=smooth", SAGE, "actor_rollout_ref.rollout.top_p=0.9", "algorithm.rollout_correction.bypass_mode=True"],
        ["top_p=0.9", "bypass_mode=False"],
    ),
}  # fmt: skip


class OfTokens(Advantage):
    kind, stage = "tokens", "factor"


class Odd(Advantage):
    needs = frozenset({"weather"})


class Mine(Advantage):
    """A factor with the kind that a class has if it says none: ``group`` below it is no second one."""

    stage = "factor"

    def shape(self, r):
        return torch.full_like(r.rewards, 2.0)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_when_the_trainer_is_built(name, toy):
    overrides, named = REFUSED[name]
    refused(toy(*overrides), named)


@pytest.mark.parametrize(
    ("mode", "said"), [("sync", "trainer_mode=sync does not read it"), ("legacy", "legacy trainer")]
)
def test_other_trainers_refuse_the_estimator(mode, said, toy):
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    start = (lambda config: RayPPOTrainer(config, None, {}, None)) if mode == "legacy" else build
    config = toy(SAGE, mode="sync")
    with pytest.raises(UserError, match=rf"algorithm\.adv_estimator=sage is set but .*{said}"):
        start(config)


ALLOWED = {  # → what the first line says of it
    "no guide need be named": (["+sage.advantage=maxrl", NO_KL], "sage.guide=none: MaxRLAdvantage(), nothing is shaped"),
    "with a guide": (["+sage.advantage=maxrl", "+sage.guide=branch"], "driver seam, hold=True, center=none, seed=0, MaxRL"),
    "on the loss seam": (["+sage.advantage=maxrl", "+sage.guide=branch", "+sage.hold=false"], "loss seam"),
    "a reference without a pull": (
        ["+sage.advantage=rarity", f"{ACTOR}.kl_loss_coef=0"], "rarity={'share': 1.0}, group={'scale': 'group'}",
    ),
    "as Dr. GRPO": (["+sage.advantage=[rarity,focal]", REWARD[2]], "group={'scale': 'none'}"),
    "a user's own": (["+sage.advantage=test_advantage:Mine", REWARD[2]], "group={'scale': 'none'}"),
    "one std for all": (["+sage.advantage=group", "+sage.advantage_args={scale: batch}"], "GroupAdvantage(scale='batch')"),
    "std is not read": (["+sage.advantage=maxrl", *REWARD[:2]], "MaxRLAdvantage()"),
    "the guide's k1": (["+sage.advantage=maxrl", "+sage.guide=branch", *REWARD], "estimator k1-reward"),
    "unset": (["+sage.guide=none"], "verl as it is"),
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_what_can_work_is_said_in_the_first_line(name, toy, capsys):
    overrides, said = ALLOWED[name]
    build(toy(SAGE, *overrides))
    assert said in capsys.readouterr().out
