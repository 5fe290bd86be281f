"""From rewards to advantages in real trainers: each advantage against its formula, in plain Python, from rewards that are known
and log-probs taken by hand from the models' full logits."""

import copy
import itertools
import json
import math
import statistics
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from sage_rlvr import UserError
from sage_rlvr.advantage import names_by_kind
from sage_rlvr.tasks import task_reward
from sage_rlvr.train import SAGEConfig, SAGETrainer
from sage_rlvr.train.credit import Credit

from ..slow import but_few
from . import tiny
from .tiny import build

GROUP, ROWS, NAN = 8, 48, float("nan")
OWN = "tests.train.own_advantage"


class Judge:
    """By the prompt's first number: 0 all wrong, 1 all right, 2 nobody could judge, else by the text, one in eight unjudged."""

    __name__ = "judge"

    def __call__(self, prompts, completions, **columns):
        return [self.one(int(p.split("+")[0]), c) for p, c in zip(prompts, completions)]

    def one(self, number, text):
        fixed = {0: 0.0, 1: 1.0, 2: None}
        return fixed[number] if number in fixed else None if ord(text[1]) % 8 == 0 else float(ord(text[-1]) % 4 == 0)

    def key(self, text):
        return "abc"[ord(text[0]) % 3] if text[0].isalpha() else None


def inputs(rows=ROWS, group=GROUP):
    return [dict(row) for row in tiny.dataset(rows // group) for _ in range(group)]


@torch.no_grad()
def by_hand(output, model):
    """Row → log-probs of its counted tokens, one text at a time through all logits, in float64."""
    model, rows = copy.deepcopy(model).double().eval(), []
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    for pids, pmask, cids, cmask in zip(*(output[name].tolist() for name in names)):
        prompt, completion = ([i for i, m in zip(*pair) if m] for pair in ((pids, pmask), (cids, cmask)))
        if not completion:
            rows.append([])
            continue
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / 0.9
        rows.append(logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist())
    return rows


def mean(xs):
    return sum(xs) / len(xs)


# ---- the formulas, of one group, among the completions that were judged ----------------------------------------------


def grpo(pay, g=None):
    spread = statistics.stdev(pay) if len(pay) > 1 else 0.0
    return [(r - mean(pay)) / (spread + 1e-4) for r in pay]


def rarity(g):
    right = [-lp for lp, r in zip(g.ref, g.r) if r > 0]
    return [r * -lp / mean(right) if r else r for r, lp in zip(g.r, g.ref)]


def coverage(g):
    given = [a for a, r in zip(g.answers, g.r) if r > 0 and a is not None]
    return [r / given.count(a) if r and a is not None else r for r, a in zip(g.r, g.answers)]


def unlikely(g):
    order = sorted(g.logps)
    return [r * (1 - 0.25 * order.index(lp) / len(order)) for r, lp in zip(g.r, g.logps)]


def alike(g, beta=0.2):
    whole = [lp * n for lp, n in zip(g.ref, g.lengths)]
    top = max((w for w, r in zip(whole, g.r) if r), default=0.0)
    return [r and 1.0 + beta * (top - w) for r, w in zip(g.r, whole)]


def best_of(rs, k):
    """The mean, over every k of them, of the best one's reward."""
    return mean([max(s, default=0.0) for s in itertools.combinations(rs, k)])


def with_it(g, i, k):
    others = g.r[:i] + g.r[i + 1 :]
    return mean([max([g.r[i], *s]) for s in itertools.combinations(others, k - 1)])


def passk(g, k=4):
    rho = best_of(g.r, k) if len(g.r) >= k else 0.0
    if rho in (0.0, 1.0):
        return [0.0] * len(g.r)
    return [(with_it(g, i, k) - rho) / math.sqrt(rho * (1 - rho)) for i in range(len(g.r))]


def pkpo(g, k=4):
    if len(g.r) <= k or len(set(g.r)) == 1:
        return [0.0] * len(g.r)
    return [with_it(g, i, k) - best_of(g.r[:i] + g.r[i + 1 :], k) for i in range(len(g.r))]


def risk(g, b=2.0):
    soft = math.log(mean([math.exp(b * r) for r in g.r])) / b
    return [(math.exp(b * (r - soft)) - 1) / b for r in g.r]


def smooth(g, gamma=0.05):
    return [a + gamma * (-lp if r else lp) for a, r, lp in zip(grpo(g.r), g.r, g.logps)]


def focal(g, a):
    return [x * (1 - mean(g.r)) for x in a]


def beta(g):
    p = [mean(other) for other in g.batch]
    m, v = mean(p), statistics.pvariance(p)
    both = m * (1 - m) / v - 1
    a, b = 1 + m * both / 3, 1 + (1 - m) * both / 3
    here = mean(g.r)
    if here in (0.0, 1.0):
        return [0.0] * len(g.r)
    log_pdf = (
        (a - 1) * math.log(here) + (b - 1) * math.log(1 - here) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    )
    return [(r - here) / math.exp(log_pdf) for r in g.r]


WANTED = {
    "group": lambda g: grpo(g.r),
    "beta": beta,
    "focal": lambda g: focal(g, grpo(g.r)),
    "maxrl": lambda g: [(r - mean(g.r)) / mean(g.r) if sum(g.r) else 0.0 for r in g.r],
    "passk": passk,
    "pkpo": pkpo,
    "rarity": lambda g: grpo(rarity(g)),
    "coverage": lambda g: grpo(coverage(g)),
    "unlikely": lambda g: grpo(unlikely(g)),
    "alike": lambda g: grpo(alike(g)),
    "smooth": smooth,
    "signed": lambda g: [0.1 if r else -1.0 for r in g.r],
    "risk": risk,
    ("rarity", "focal"): lambda g: focal(g, grpo(rarity(g))),
    ("focal", "signed"): lambda g: focal(g, [0.1 if r else -1.0 for r in g.r]),
    f"{OWN}:Once": lambda g: [a * (sum(g.r) == 1) for a in grpo(g.r)],
}


def groups_of(output, policy, reference, texts, group=GROUP):
    """What is known of each group's judged completions, and where they lie."""
    judge, logps, ref = Judge(), by_hand(output, policy), by_hand(output, reference)
    rows = []
    for i, (prompt, text) in enumerate(texts):
        r = judge.one(int(prompt.split("+")[0]), text)
        rows.append((i, r, mean(logps[i]), mean(ref[i]), len(ref[i]), judge.key(text)))
    found = []
    for first in range(0, len(rows), group):
        known = [row for row in rows[first : first + group] if row[1] is not None]
        places, r, lp, rf, n, answers = (list(x) for x in zip(*known)) if known else ([],) * 6
        found.append(SimpleNamespace(places=places, r=r, logps=lp, ref=rf, lengths=n, answers=answers))
    for g in found:
        g.batch = [other.r for other in found if other.r]
    return found


def texts_of(trainer, output):
    read = trainer.processing_class.batch_decode
    return list(
        zip(*(read(output[f"{part}_ids"], skip_special_tokens=True) for part in ("prompt", "completion")), strict=True)
    )


def becomes(trainer, **settings):
    """The same trainer with other settings of its credit."""
    trainer.args = copy.copy(trainer.args)
    for name, value in settings.items():
        setattr(trainer.args, name, value)
    trainer.credit, trainer.whole_batch = Credit(trainer, trainer.args), trainer.args.wants_whole_batch()


@pytest.fixture(scope="module")
def trainer(folder, tmp_path_factory):
    """A policy that has left its reference."""
    made = build(
        folder, tmp_path_factory.mktemp("credit"), reward=Judge(), guide="none", num_generations=GROUP,
        per_device_train_batch_size=ROWS, num_generations_eval=4, per_device_eval_batch_size=16,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(5)
    for p in made.model.parameters():
        p.data += 0.05 * torch.randn(p.shape, generator=draw)
    made.model.train()
    return made


def test_every_registered_advantage_has_a_formula_here():
    kinds = names_by_kind()
    ours = {name for kind in kinds if kind != "tokens" for name in kinds[kind]} - {
        "needy"
    }  # another test's own; test_tokens.py
    assert {name for name in WANTED if isinstance(name, str) and ":" not in name} >= ours


@pytest.mark.parametrize("name", WANTED, ids=str)
def test_advantages_are_those_of_the_formula(trainer, folder, name):
    becomes(trainer, advantage=list(name) if isinstance(name, tuple) else name, advantage_args=None)
    output = trainer._generate_and_score_completions(inputs())
    reference = AutoModelForCausalLM.from_pretrained(folder)
    got, moved = output["advantages"].tolist(), 0.0
    unjudged = set(range(ROWS))
    for g in groups_of(output, trainer.model, reference, texts_of(trainer, output)):
        if g.r:
            assert [got[i] for i in g.places] == pytest.approx(WANTED[name](g), abs=2e-3, rel=1e-3)
            moved += sum(abs(got[i]) for i in g.places)
            unjudged -= set(g.places)
    assert len(unjudged) > GROUP
    assert all(got[i] == 0 for i in unjudged), "nobody could judge them"
    assert moved > 1
    assert not {"sage_rewards", "sage_mean_logps", "sage_answers", "sage_logps"} & output.keys(), (
        "the buffer stays small"
    )
    assert list(trainer._logs["advantages"]) == got, "TRL's table of completions has them"


def test_rewards_stay_as_they_were_judged(trainer):
    """In TRL's log, in ours, and in TRL's table, whatever the advantage pays."""
    seen = {}
    for name in ("group", "rarity", "signed"):
        becomes(trainer, advantage=name, advantage_args=None)
        trainer._metrics["train"].clear()
        trainer._generate_and_score_completions(inputs())
        shown = ("reward", "reward_std", "frac_reward_zero_std", "sage/zero_variance_groups", "rewards/judge/mean")
        seen[name] = {key: trainer._metrics["train"][key] for key in shown}
        assert trainer.credit.rewards.nan_to_num(-9.0).tolist() == [
            -9.0 if math.isnan(r) else r for r in trainer._logs["rewards"]["judge"]
        ]
    assert seen["group"] == seen["rarity"] == seen["signed"]
    assert 0 < seen["group"]["reward"][0] < 1


def test_an_evaluation_has_groups_of_its_own_size(trainer, folder):
    becomes(trainer, advantage="unlikely", advantage_args=None)
    trainer.model.eval()
    try:
        output = trainer._generate_and_score_completions(inputs(16, 4))
    finally:
        trainer.model.train()
    reference = AutoModelForCausalLM.from_pretrained(folder)
    got = output["advantages"].tolist()
    for g in groups_of(output, trainer.model, reference, texts_of(trainer, output), group=4):
        if g.r:
            assert [got[i] for i in g.places] == pytest.approx(grpo(unlikely(g)), abs=2e-3, rel=1e-3)


def test_a_reward_that_cannot_be_counted_ends_the_run_in_a_sentence(folder, tmp_path):
    def halves(completions, **columns):
        return [0.5 * r for r in tiny.hash_reward(completions)]

    run = build(folder, tmp_path, reward=halves, advantage="passk", advantage_args={"k": 2})
    with pytest.raises(UserError, match=r"counts right answers, so rewards are 0 or 1, and one is 0\.5"):
        run.train()


# ---- GRPO's own ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_group_is_trls_bit_for_bit(folder, tmp_path, scale):
    """Against GRPOTrainer itself, on the same rollouts; and the room's own ``group`` gives the same bits."""
    options = {"num_generations": GROUP, "per_device_train_batch_size": ROWS, "scale_rewards": scale}
    told = tiny.config(GRPOConfig, tmp_path / "theirs", **options)
    theirs = GRPOTrainer(folder, Judge(), told, tiny.dataset(), rollout_func=tiny.given_rollouts)
    ours = build(folder, tmp_path / "ours", reward=Judge(), **options)
    outputs = []
    for run in (theirs, ours):
        run.model.train()
        outputs.append(run._generate_and_score_completions(inputs())["advantages"])
    assert outputs[0].abs().sum() > 1
    assert torch.equal(*outputs)
    ours.credit.plain = False
    assert torch.equal(outputs[0], ours._generate_and_score_completions(inputs())["advantages"])


# ---- what an advantage is shown ----------------------------------------------------------------------------------------

WAYS = {
    "one pass of ours": {},
    "TRL's own pass": {"num_iterations": 2},
    "several slices": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    "micro-batches": {"tokens_per_microbatch": 60},
    "the penalty in the reward": {"anchor_estimator": "k1-reward", "guide": "branch"},
    "lora": {"lora": True},
    "groups drawn again": {"dynamic_sampling": 2},
}


@pytest.mark.parametrize("way", but_few(WAYS, {0, 2, 4, 6}))
def test_a_users_own_advantage_is_shown_log_probs_lengths_and_answers(folder, tmp_path, way):
    """Through the config, as 'package.module:Class'; log-probs by hand, from the weights at the time of sampling."""
    options = {"per_device_train_batch_size": 16, "num_generations": 8, "max_steps": 2, "guide": "none", **WAYS[way]}
    peft = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="gaussian") if options.pop("lora", 0) else None
    checked = []

    class Spy(SAGETrainer):
        def _make_rollouts(self, inputs):
            policy = copy.deepcopy(self.model)
            output = super()._make_rollouts(inputs)
            wanted = {
                "logps": by_hand(output, policy),
                "ref_logps": by_hand(output, AutoModelForCausalLM.from_pretrained(folder)),
            }
            for shows, rows in wanted.items():
                self.credit.advantage.shows = shows
                self.credit.assign(self.columns)
                judged = [not math.isnan(r) for r in self.columns["sage_rewards"].tolist()]
                want = [mean(row) if known else 0.0 for row, known in zip(rows, judged)]
                assert self.columns["advantages"].tolist() == pytest.approx(want, rel=1e-4)
                checked.append(want)
            assert self.columns["sage_lengths"].tolist() == [len(row) for row in rows]
            keys = [self.reward_funcs[0].key(text) for _, text in texts_of(self, output)]
            assert self.answers == keys
            return output

    class Kept(Spy):
        def _shape_rollouts(self, output):
            self.columns = dict(output)
            self.answers = [self.credit._numbers.get(n) for n in output["sage_answers"].tolist()]
            super()._shape_rollouts(output)

    args = tiny.config(SAGEConfig, tmp_path, advantage=f"{OWN}:Seen", advantage_args={"shows": "logps"}, **options)
    run = Kept(folder, Judge(), args, tiny.dataset(), rollout_func=tiny.given_rollouts, peft_config=peft)
    run.train()
    assert len(checked) >= 2
    assert "Seen (shows logps" in (run.create_model_card() or (tmp_path / "README.md").read_text())


def test_a_completion_without_a_counted_token_has_no_log_prob(folder, tmp_path):
    """Completions that hit the length limit count for nothing; those that end by themselves do."""
    seen = []

    class Spy(SAGETrainer):
        def _shape_rollouts(self, output):
            seen.append((output["sage_mean_ref_logps"].isnan().tolist(), self._finished.tolist()))
            super()._shape_rollouts(output)

    options = {"mask_truncated_completions": True, "per_device_train_batch_size": 16, "num_generations": 8}
    build(folder, tmp_path, Spy, given=False, advantage="rarity", max_completion_length=24, **options).train()
    assert all([not f for f in finished] == unknown for unknown, finished in seen)
    assert any(any(unknown) and not all(unknown) for unknown, _ in seen), "both kinds were there"


def test_coverage_pays_for_solutions_and_not_for_spelling(folder, tmp_path):
    """One problem, a group of eight: three spellings of one solution, two of another, a wrong answer twice, no answer. With a
    plain reward function no answer can be read, and none is like another."""
    texts = ["3+4*2-1", "03+4*2-1", "3+4*2-1=13", "4+3*2-1", " 4+3*2-1", "1+1", "1+1", "a"]
    gold = json.dumps({"numbers": [1, 2, 3, 4], "target": 13})

    def said(prompts, trainer):
        tok = trainer.processing_class
        ids = [tok(text)["input_ids"] + [tok.eos_token_id] for text in texts]
        prompts = [tok(p)["input_ids"] for p in prompts]
        return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": [[0.0] * len(i) for i in ids]}

    options = {"num_generations": 8, "per_device_train_batch_size": 8, "scale_rewards": "none", "advantage": "coverage"}
    wanted = {task_reward("countdown-ltr", "plain"): [1 / 3] * 3 + [1 / 2] * 2 + [0] * 3}

    def plain(completions, **columns):
        return [float(c != "a") for c in completions]

    wanted[plain] = [1.0] * 7 + [0.0]
    for reward, paid in wanted.items():
        run = build(folder, tmp_path, reward=reward, given=said, **options)
        run.model.train()
        got = run._generate_and_score_completions([{"prompt": "1+1=", "answer": gold}] * 8)["advantages"]
        assert got.tolist() == pytest.approx([x - mean(paid) for x in paid], abs=1e-6)


# ---- dynamic sampling ------------------------------------------------------------------------------------------------

LEFT = {  # of groups with 0 … 4 right: those that teach nothing
    ("group", ()): [0, 4],
    ("focal", ()): [0, 4],
    ("beta", ()): [0, 4],
    ("passk", (("k", 3),)): [0, 2, 3, 4],  # with two right of four, every three hold one
    ("signed", ()): [],
    ("signed", (("right", 0.0),)): [4],
    ("rarity", ()): [0],  # unequal pay for unequal surprisal
    ("smooth", ()): [],
}


@pytest.mark.parametrize(("name", "args"), LEFT, ids=str)
def test_which_groups_teach_nothing(trainer, name, args):
    becomes(trainer, advantage=name, advantage_args=dict(args))
    rewards = torch.tensor([[1.0] * c + [0.0] * (4 - c) for c in range(5)]).flatten()
    third = 1 / 3 if name == "group" else 1.0  # a number that rounding leaves something of
    draw = torch.Generator().manual_seed(0)
    logps, ref = (-torch.rand(20, generator=draw) for _ in range(2))
    batch = {"sage_rewards": rewards * third, "sage_mean_logps": logps, "sage_mean_ref_logps": ref}
    trainer.num_generations = 4
    try:
        flat = trainer.credit.flat(batch | {"sage_lengths": torch.full((20,), 5)})
        assert flat.nonzero().flatten().tolist() == LEFT[name, args]
        if name != "group":
            assert trainer.credit.flat(batch | {"sage_lengths": torch.zeros(20)}).all(), "nothing to push"
    finally:
        trainer.num_generations = GROUP


def test_after_an_exchange_the_advantages_are_the_final_batchs(folder, tmp_path):
    """Beta's are fitted to all groups of a batch: those that left must not count, and those that came must."""
    seen = []

    class Spy(SAGETrainer):
        def _make_rollouts(self, inputs):
            output = super()._make_rollouts(inputs)
            seen.append((output, {k: v[-1] for k, v in self._metrics["train"].items()}))
            return output

    options = {"num_generations": 8, "per_device_train_batch_size": 48, "max_steps": 1, "shuffle_dataset": False}
    run = build(folder, tmp_path, Spy, reward=Judge(), advantage="beta", dynamic_sampling=3, guide="none", **options)
    run.train()
    (output, metrics), reference = seen[0], AutoModelForCausalLM.from_pretrained(folder)
    assert metrics["sage/resampled_groups"] >= 3
    assert metrics["sage/flat_groups_left"] == 0
    got = output["advantages"].tolist()
    for g in groups_of(output, reference, reference, texts_of(run, output)):
        assert [got[i] for i in g.places] == pytest.approx(beta(g), abs=1e-4, rel=1e-3)


# ---- what a folder says ----------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_advantage_is_refused(folder, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    build(folder, tmp_path, advantage="focal", **options).train()
    card = (tmp_path / "README.md").read_text()
    assert "- Loss: grpo, advantage focal (gamma 1.0) + group (r − mean)/std" in card
    checkpoint, options["max_steps"] = str(tmp_path / "checkpoint-1"), 2
    for settings, sentence in [
        ({}, "the checkpoint's advantage is 'focal', this run's is 'group': resume with advantage='focal'"),
        ({"advantage": ["focal", "rarity"]}, r"this run's is \['rarity', 'focal'\]"),
        (
            {"advantage": "focal", "advantage_args": {"gamma": 0.5}},
            "'focal' was saved with gamma=1.0, this run has 0.5",
        ),
    ]:
        with pytest.raises(UserError, match=sentence):
            build(folder, tmp_path / "other", **options, **settings).train(checkpoint)
    build(folder, tmp_path / "same", advantage="focal", **options).train(checkpoint)


def test_the_guide_is_shown_rewards_it_can_use(folder, tmp_path):
    """Once ``verified`` took what lies below 0 for 0, and what lies above 1 for 1, without a word."""

    def signed(completions, **columns):
        return [2 * r - 1 for r in tiny.hash_reward(completions)]

    with pytest.raises(UserError, match=r"guide 'verified' takes rewards between 0 and 1, .* and one is -1"):
        build(folder, tmp_path, reward=signed, guide="verified").train()
