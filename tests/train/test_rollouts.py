"""Rollouts: where a completion ends, credit for coverage, BNPO's advantage, DAPO's new prompts for flat groups."""

import itertools
import json
import math
import random
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.trainer import grpo_trainer

from sage_rlvr import UserError
from sage_rlvr.tasks import task_reward
from sage_rlvr.train import SAGETrainer, measure, rollouts

from . import tiny
from .tiny import build

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


def test_where_a_steps_time_went_over_all_its_rounds(folder, tmp_path, monkeypatch):
    """By a clock that stands still but for 5 s a generation and 3 s a judgement; the second round is dynamic sampling's."""
    now = [0.0]
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(SAGETrainer):
        def _generate_single_turn(self, *args, **kwargs):
            now[0] += 5
            return super()._generate_single_turn(*args, **kwargs)

    def flat(completions, **kwargs):
        now[0] += 3
        return [0.0] * len(completions)

    options = {"given": False, "max_steps": 2, "max_completion_length": 4, "logging_steps": 1}
    for rounds in (0, 1):
        trainer = build(folder, tmp_path / str(rounds), Slow, reward=flat, dynamic_sampling=rounds, **options)
        trainer.train()
        parts = [
            {k: v for k, v in h.items() if k.startswith("time/")} for h in trainer.state.log_history if "loss" in h
        ]
        own = {"time/generate": 5.0, "time/reward": 3.0, "time/rollout": 8.0}
        assert parts == [{part: seconds * (1 + rounds) for part, seconds in own.items()}] * 2


# ---- BNPO ----------------------------------------------------------------------------------------------------------


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


def test_coverage_pays_each_its_shapley_value_of_the_distinct_right_answers():
    """By definition: what a completion adds to the set of right answers, averaged over every order of its group."""
    draw = random.Random(3)
    for _ in range(20):
        group = draw.choice([2, 3, 5])
        answers = [draw.choice(["a", "b", "c", None]) for _ in range(2 * group)]
        right = [float(a in ("a", "b")) for a in answers]
        want = []
        for first in (0, group):
            added, orders = [0.0] * group, list(itertools.permutations(range(group)))
            for order in orders:
                found = set()
                for i in order:
                    if right[first + i] and answers[first + i] not in found:
                        found.add(answers[first + i])
                        added[i] += 1
            want += [a / len(orders) for a in added]
        rewards = torch.tensor(right)
        shapley = rewards * rollouts.coverage_factor(rewards, answers, group, 1.0)
        assert shapley.tolist() == pytest.approx(want)
        half = rewards * rollouts.coverage_factor(rewards, answers, group, 0.5)
        assert torch.allclose(half, (rewards + shapley) / 2)
    unscorable = rollouts.coverage_factor(torch.tensor([torch.nan, 1.0, 1.0]), ["a", "a", "a"], 3, 1.0)
    assert unscorable.tolist() == [1.0, 0.5, 0.5]
    unreadable = rollouts.coverage_factor(torch.ones(8), [None] * 8, 8, 1.0)
    assert unreadable.tolist() == [1.0] * 8  # a plain reward whose answers cannot be read: not one answer, eight times


class FirstLetter:
    """Letters give one of three answers, all right; any other first sign is its own answer, right if it is a low digit."""

    __name__ = "first_letter"

    def __call__(self, completions, **columns):
        return [float(self.extract(c) in "abc0123456") for c in completions]

    def extract(self, completion):
        return "abc"[ord(completion[0]) % 3] if completion[0].isalpha() else completion[0]


def test_coverage_reaches_the_advantages(folder, tmp_path):
    seen, reward = [], FirstLetter()

    class Spy(SAGETrainer):
        def _calculate_rewards(self, inputs, prompts, completions, ids):
            seen.append([completions])
            return super()._calculate_rewards(inputs, prompts, completions, ids)

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen[-1] += [output["advantages"], self._metrics["train"]["sage/plain_reward"][-1]]
            return output

    options = {"coverage": 1.0, "per_device_train_batch_size": 16, "num_generations": 8, "scale_rewards": "none"}
    trainer = build(folder, tmp_path, Spy, reward=reward, **options)
    trainer.train()
    shared = 0
    for completions, advantages, plain in seen:
        right, answers = reward(completions), [reward.extract(c) for c in completions]
        for first in (0, 8):
            given = [a for a, r in zip(answers[first : first + 8], right[first : first + 8]) if r]
            paid = [r and 1 / given.count(a) for a, r in zip(answers[first : first + 8], right[first : first + 8])]
            shared += len(given) - len(set(given))
            want = [x - sum(paid) / 8 for x in paid]
            assert advantages[first : first + 8].tolist() == pytest.approx(want, abs=1e-6)
        assert plain == pytest.approx(sum(right) / 16)
    assert shared > 3
    trainer.model.eval()  # what is evaluated is judged plainly
    prompts = ["1+1="] * 8
    trainer._finished = torch.ones(8, dtype=torch.bool)
    plain = trainer._calculate_rewards([{}] * 8, prompts, ["aa", "ab", "d", "d", "0", "0", "9", "+"], [[1]] * 8)
    assert plain[:, 0].tolist() == [1.0] * 6 + [0.0] * 2


def test_coverage_pays_for_solutions_and_not_for_spelling(folder, tmp_path):
    """One problem, a group of eight: three spellings of one solution, two of another, a wrong answer twice, no answer."""
    texts = ["3+4*2-1", "03+4*2-1", "3+4*2-1=13", "4+3*2-1", " 4+3*2-1", "1+1", "1+1", "a"]
    gold = json.dumps({"numbers": [1, 2, 3, 4], "target": 13})
    reward = task_reward("countdown-ltr", "plain")
    options = {"coverage": 1.0, "num_generations": 8, "per_device_train_batch_size": 8}
    trainer = build(folder, tmp_path, reward=reward, **options)
    trainer.model.train()
    trainer._finished = torch.ones(8, dtype=torch.bool)
    paid = trainer._calculate_rewards([{"answer": gold}] * 8, ["1+1="] * 8, texts, [[1]] * 8)
    assert paid[:, 0].tolist() == pytest.approx([1 / 3] * 3 + [1 / 2] * 2 + [0] * 3)
    plain = build(folder, tmp_path, reward=lambda completions, **_: [1.0] * 8, **options)
    plain.model.train()
    plain._finished = torch.ones(8, dtype=torch.bool)
    paid = plain._calculate_rewards([{}] * 8, ["1+1="] * 8, texts, [[1]] * 8)
    assert paid[:, 0].tolist() == [1.0] * 8


def test_rarity_shares_a_groups_reward_by_surprisal():
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 2.0, torch.nan, 1.0, 1.0, 0.0])
    surprisal = torch.tensor([1.0, 9.0, 2.0, 6.0, 1.0, 1.0, 1.0, 5.0, 4.0, 0.0, 0.0, 1.0])
    whole = rollouts.rarity_factor(rewards, surprisal, 4, 1.0)
    # of three right ones by their share of 9; a lone one, and what is certain, keep theirs
    assert whole.tolist() == pytest.approx([1 / 3, 1, 2 / 3, 2, 1, 1, 1, 1, 1, 1, 1, 1])
    assert rollouts.rarity_factor(rewards, surprisal, 4, 0.25).tolist() == pytest.approx((0.75 + 0.25 * whole).tolist())
    unknown = torch.tensor([2.0, torch.nan, 2.0, 6.0])  # nan: TRL masked it before it was looked at
    assert rollouts.rarity_factor(torch.ones(4), unknown, 4, 1.0).tolist() == pytest.approx([0.6, 1, 0.6, 1.8])
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        right, rare = torch.randint(2, (32,), generator=draw).float(), 9 * torch.rand(32, generator=draw)
        paid = right * rollouts.rarity_factor(right, rare, 8, 1.0)
        assert torch.allclose(paid.view(-1, 8).sum(1), right.view(-1, 8).sum(1), atol=1e-5), (
            "none is added, none is lost"
        )


def test_rarity_leaves_out_what_trl_masks(folder, tmp_path):
    """Completions that hit the length limit have no surprisal, those that end by themselves do."""
    seen = []

    class Spy(SAGETrainer):
        def _surprisal(self, completion_ids):
            seen.append((super()._surprisal(completion_ids), [ids[-1] == 1 for ids in completion_ids]))
            return seen[-1][0]

    options = {"mask_truncated_completions": True, "per_device_train_batch_size": 16, "num_generations": 8}
    build(folder, tmp_path, Spy, given=False, rarity=1.0, max_completion_length=24, **options).train()
    known = [(~s.isnan()).tolist() for s, _ in seen]
    assert known == [finished for _, finished in seen]
    assert any(any(k) and not all(k) for k in known), "both kinds were there"


@pytest.mark.parametrize(
    "option",
    [
        {},
        {"anchor_estimator": "k1-reward", "guide": "none"},
        {"tokens_per_microbatch": 60},
        {"num_iterations": 2, "max_steps": 4},  # TRL also passes over the policy, before the reference
    ],
)
def test_rarity_reaches_the_advantages(folder, tmp_path, option):
    """From the reference's own log-probs, taken again by hand."""
    seen, reference = [], AutoModelForCausalLM.from_pretrained(folder).eval()

    class Spy(SAGETrainer):
        def _add_bonus(self, *args):  # the task's advantage alone
            return None

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append((output, self._metrics["train"]["sage/plain_reward"][-1]))
            return output

    options = {
        "rarity": 1.0,
        "per_device_train_batch_size": 16,
        "num_generations": 8,
        "scale_rewards": "none",
        **option,
    }
    build(folder, tmp_path, Spy, **options).train()
    moved = 0.0
    for output, plain in seen:
        surprisal = []
        for rows in zip(
            *(output[k].tolist() for k in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"))
        ):
            prompt, completion = ([i for i, m in zip(*pair) if m] for pair in (rows[:2], rows[2:]))
            with torch.no_grad():
                logits = reference(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / 0.9
            surprisal.append(-logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None]).mean().item())
        right = torch.tensor(
            tiny.hash_reward(tiny.tokenizer().batch_decode(output["completion_ids"], skip_special_tokens=True))
        )
        for first in (0, 8):
            r, s = right[first : first + 8], torch.tensor(surprisal[first : first + 8])
            paid = r * s / (r * s).sum() * r.sum() if r.sum() else r
            moved += float((paid - r).abs().sum())
            assert torch.allclose(output["advantages"][first : first + 8], paid - paid.mean(), atol=1e-4)
        assert plain == pytest.approx(float(right.mean()))
    assert moved > 0.3


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


# ---- DAPO ----------------------------------------------------------------------------------------------------------


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


def test_a_groups_prompt_is_tokenised_once(folder, tmp_path, monkeypatch):
    """As many rows as before, the same ids; neighbours that differ are kept apart."""
    trainer = tiny.build(folder, tmp_path)
    seen = []
    theirs = GRPOTrainer._tokenize_prompts

    def counted(self, prompts):
        seen.append(len(prompts))
        return theirs(self, prompts)

    monkeypatch.setattr(GRPOTrainer, "_tokenize_prompts", counted)
    prompts = ["1+2="] * 4 + ["30+4="] * 4 + ["1+2="]
    ids, images, fields = trainer._tokenize_prompts(prompts)
    assert seen == [3]
    assert (ids, images, fields) == theirs(trainer, prompts)
    ids[0].append(7)
    assert ids[1] != ids[0]  # rows are their own


def test_a_groups_prompt_is_copied_once(folder, tmp_path, monkeypatch):
    """TRL deep-copies the prompts: equal neighbours reach it as one object, unless somebody may write into them."""
    trainer = tiny.build(folder, tmp_path, given=False)
    seen = []
    monkeypatch.setattr(GRPOTrainer, "_generate", lambda self, prompts: seen.append(prompts) or ([], [[1]]))
    texts = ["1+2="] * 4 + ["30+4="] * 4 + ["1+2="]
    prompts = [[{"role": "user", "content": text}] for text in texts]
    trainer._generate(prompts)
    trainer.tools = [print]
    trainer._generate(prompts)
    shared, apart = seen
    assert shared == apart == prompts
    assert [len({id(p) for p in batch}) for batch in (shared, apart)] == [3, 9]


def test_rows_of_text_are_not_searched_for_tensors(folder, tmp_path, monkeypatch):
    """The same rows as with Accelerate's walk through them, without the walk."""
    ours = build(folder, tmp_path / "ours").get_train_dataloader()
    theirs = GRPOTrainer.get_train_dataloader(build(folder, tmp_path / "theirs"))
    rows = [batch for batch, _ in zip(theirs, range(3))]
    monkeypatch.setattr("accelerate.data_loader.send_to_device", lambda *args, **kwargs: pytest.fail("searched"))
    assert [batch for batch, _ in zip(ours, range(3))] == rows


def test_a_static_cache_draws_the_same_rollouts(folder, tmp_path):
    """TRL's option for generation without vLLM, through our trainer: the same losses and lengths, digit for digit."""
    runs = []
    for name, option in (("default", {}), ("static", {"cache_implementation": "static"})):
        torch.manual_seed(0)
        trainer = build(folder, tmp_path / name, given=False, max_steps=2, max_completion_length=12, **option)
        trainer.train()
        runs.append([(e["loss"], e["completions/mean_length"]) for e in trainer.state.log_history if "loss" in e])
    assert runs[0] == runs[1]
    assert len(runs[0]) == 2


def test_padding_in_one_call_is_trls(folder, tmp_path, monkeypatch):
    """The same tensor for every side, multiple, dtype and raggedness; TRL's own is what the trainer no longer calls."""
    generator = torch.Generator().manual_seed(0)
    for case in range(200):
        lengths = torch.randint(
            0, 9, (int(torch.randint(1, 7, (1,), generator=generator)),), generator=generator
        ).tolist()
        if case % 2:
            rows = [torch.randint(5, (n,), generator=generator) for n in lengths]
        else:
            rows = [torch.tensor([float(i) for i in range(n)]) for n in lengths]
        rows[-1:] = (
            [torch.tensor([])] if case % 5 == 0 and len(rows) > 1 else rows[-1:]
        )  # as an empty list becomes: float32
        for side in ("left", "right"):
            for multiple in (None, 4):
                theirs = grpo_trainer.pad(rows, 7, side, multiple)
                ours = rollouts.quick_pad(rows, 7, side, multiple)
                assert torch.equal(ours, theirs)
                assert ours.dtype == theirs.dtype
    planes = [torch.ones(2, 3), torch.ones(1, 2)]
    assert torch.equal(rollouts.quick_pad(planes), grpo_trainer.pad(planes))
    monkeypatch.setattr(grpo_trainer, "pad", lambda *args, **kwargs: pytest.fail("row by row"))
    build(folder, tmp_path, given=False, max_steps=1, max_completion_length=6).train()
