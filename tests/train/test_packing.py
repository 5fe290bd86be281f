"""A slice in micro-batches by token budget: loss, gradient, weights and metrics of the unsplit slice; and what it saves."""

import hashlib
import math

import pytest
import torch
from peft import LoraConfig

from sage_rlvr.errors import UserError
from sage_rlvr.train import SAGEConfig, SAGETrainer, microbatches, packing

from ..slow import but_few
from . import run_pair, tiny
from .test_distributed import launch

LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
ANCHORS = {
    "k3": {"guide": "branch", "anchor_estimator": "k3"},
    "k2": {"guide": "tempered", "anchor_estimator": "k2"},
    "k1-reward": {"guide": "branch", "anchor_estimator": "k1-reward"},
    "beta=0": {"guide": "none", "beta": 0.0},
}


def ragged(prompts, trainer):
    """Prompts and completions of 1 to 30 tokens: a spread in which padding dominates."""
    tok, out = trainer.processing_class, {"prompt_ids": [], "completion_ids": [], "logprobs": []}
    first = trainer.accelerator.process_index * len(prompts)
    for row, prompt in enumerate(prompts, start=first):
        digest = hashlib.sha256(f"{prompt}|{row % trainer.num_generations}".encode()).digest()
        length = 30 if digest[0] % 5 == 0 else digest[0] % 7
        ids = [3 + b % len(tiny.LETTERS) for b in digest[1 : 1 + length]] + [tok.eos_token_id]
        out["prompt_ids"].append(tok(prompt)["input_ids"] + [5] * (digest[0] % 3))
        out["completion_ids"].append(ids[:30])
        out["logprobs"].append([0.0] * len(ids[:30]))
    return out


def uneven(completions, **kwargs):
    return [hashlib.sha256(c.encode()).digest()[0] / 255 for c in completions]


def half_flat(completions, **kwargs):
    """The first half of the groups all right: advantage exactly 0. The rest uneven."""
    half = len(completions) // 2
    return [1.0] * half + uneven(completions[half:])


class Recorded(SAGETrainer):
    """Keeps every micro-step's loss and gradients, and what went through the model with a gradient and without."""

    def training_step(self, model, inputs, num_items_in_batch):
        loss = super().training_step(model, inputs, num_items_in_batch)
        grads = {n: p.grad.double().clone() for n, p in self.model.named_parameters() if p.grad is not None}
        self.record = [*getattr(self, "record", []), (float(loss), grads)]
        return loss

    def _get_per_token_logps_and_entropies(self, model, ids, *args, **kwargs):
        if torch.is_grad_enabled():
            self.shapes = [*getattr(self, "shapes", []), tuple(ids.shape)]
        return super()._get_per_token_logps_and_entropies(model, ids, *args, **kwargs)


def build(folder, out, budget, tuning="full", reward=uneven, cls=Recorded, **options):
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")
    shared = {  # SGD: Adam would blow up gradients that are 0 but for rounding
        "per_device_train_batch_size": 8, "max_completion_length": 30, "gradient_accumulation_steps": 1, "num_iterations": 2,
        "max_steps": 2, "tokens_per_microbatch": budget, "optim": "sgd", "learning_rate": 0.01,
    } | options  # fmt: skip
    trainer = cls(
        folder,
        reward,
        tiny.config(SAGEConfig, out, **shared),
        tiny.dataset(),
        rollout_func=ragged,
        peft_config=lora if tuning == "lora" else None,
    )
    for parameter in trainer.model.parameters():
        parameter.data = parameter.data.double()
    if trainer.ref_model is not None:
        trainer.ref_model.double()
    return trainer


def train(trainer):
    torch.manual_seed(0)  # TRL shuffles a rollout batch with the global generator
    trainer.train()
    return trainer


def assert_same_run(split, whole, metrics=True):
    assert len(split.record) == len(whole.record) > 1
    for (loss, grads), (want_loss, want) in zip(split.record, whole.record):
        assert loss == pytest.approx(want_loss, rel=1e-5, abs=1e-7)
        assert grads.keys() == want.keys()
        a, b = (torch.cat([g[n].flatten() for n in sorted(g)]) for g in (grads, want))
        assert float((a - b).norm()) <= 1e-5 * float(b.norm()) + 1e-12
    for (name, a), b in zip(split.model.named_parameters(), whole.model.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)
    if metrics:
        assert_same_metrics(split, whole)


def assert_same_metrics(split, whole):
    ours = {"sage/microbatches", "sage/padding", "sage/rows_skipped", *tiny.TIMES}
    assert len(split.state.log_history) == len(whole.state.log_history)
    for logged, want in zip(split.state.log_history[:-1], whole.state.log_history[:-1]):
        assert set(logged) - ours == set(want) - ours
        for name in set(want) - ours:
            if isinstance(want[name], float) and not math.isnan(want[name]):
                assert logged[name] == pytest.approx(want[name], rel=2e-4, abs=1e-5), name


# ---- exact -----------------------------------------------------------------------------------------------------------


# Every loss with two anchors, every anchor with four losses, both tunings; a quarter of it fast.
CELLS = [(x, list(ANCHORS)[(i + i // 4 + 2 * j) % 4]) for j in (0, 1) for i, x in enumerate(LOSSES)]


@pytest.mark.parametrize(("loss", "anchor"), but_few(CELLS, range(0, 8, 2)))
def test_split_is_unsplit(folder, tmp_path, loss, anchor):
    tuning = "lora" if (LOSSES.index(loss) + list(ANCHORS).index(anchor)) % 2 else "full"
    options = ANCHORS[anchor] | {"loss_type": loss, "skip_zero_advantage": False}
    if loss == "cispo":
        options |= {"epsilon_high": 1.05}
    split = train(build(folder, tmp_path / "a", 60, tuning, **options))
    whole = train(build(folder, tmp_path / "b", None, tuning, **options))
    assert len(split.shapes) > 2 * len(whole.shapes)
    assert any(float(g.norm()) > 0 for g in whole.record[0][1].values())
    assert_same_run(split, whole)


CASES = {
    "entropy bonus": {"entropy_coef": 0.3, "guide": "branch", "loss_type": "grpo", "gradient_accumulation_steps": 2},
    "entropy bonus, dapo": {
        "entropy_coef": 0.3,
        "guide": "none",
        "loss_type": "dapo",
        "gradient_accumulation_steps": 2,
    },
    "sequence ratios": {"gradient_accumulation_steps": 2, "importance_sampling_level": "sequence", "guide": "branch"},
    "sequence ratios, luspo": {"importance_sampling_level": "sequence", "guide": "none", "loss_type": "luspo"},
    "to go": {"anchor_estimator": "k1-reward", "anchor_credit": "to_go", "guide": "branch"},
    "centred": {"guide": "branch", "guide_center": "batch"},
    "a quantile of the batch": {"guide": "tempered-quantile", "guide_args": {"quantile": 0.5}},
    "noise by address": {"guide": "random", "guide_args": {"epsilon": 0.9, "sigma": 0.2}},
    "held from the first use": {"guide": "token", "num_iterations": 1, "gradient_accumulation_steps": 2},
    "not held": {"guide": "token", "guide_hold": False},
    "truncated rows masked": {"guide": "branch", "mask_truncated_completions": True, "skip_zero_advantage": True},
    "reference entropies": {"guide": "branch", "guide_args": {"source": "reference"}},
    "our head": {"guide": "branch", "fused_head": True},
    "off-policy mask": {"guide": "none", "off_policy_mask_threshold": 0.01},
    "dynamic sampling": {"guide": "none", "dynamic_sampling": 1},
}


FAST = {"entropy bonus, dapo", "sequence ratios", "to go", "centred", "noise by address", "not held", "our head",
        "truncated rows masked"}  # fmt: skip


@pytest.mark.parametrize("case", but_few(CASES, {i for i, name in enumerate(CASES) if name in FAST}))
def test_split_is_unsplit_with(folder, tmp_path, case):
    split, whole = (train(build(folder, tmp_path / str(b), b, "lora", **CASES[case])) for b in (60, None))
    assert_same_run(split, whole)


def test_gradient_accumulated_slices_as_one(folder, tmp_path):
    """What the option is for: 16 rows in one slice under a budget equal 4 slices of 4 the TRL way, for a row-wise loss."""
    options = {"guide": "branch", "loss_type": "dr_grpo", "num_iterations": 1, "max_steps": 2}
    one = train(
        build(
            folder, tmp_path / "a", 60, "lora", per_device_train_batch_size=16, gradient_accumulation_steps=1, **options
        )
    )
    four = train(
        build(
            folder,
            tmp_path / "b",
            None,
            "lora",
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            **options,
        )
    )
    for (name, a), b in zip(one.model.named_parameters(), four.model.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)


# ---- rows that weigh nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["grpo", "bnpo", "vespo"])  # one of each normaliser
def test_zero_advantage_rows_are_skipped_exactly(folder, tmp_path, loss):
    options = {"guide": "none", "beta": 0.0, "loss_type": loss, "reward": half_flat}
    options |= {"epsilon_high": 1.05} if loss == "cispo" else {}
    split, whole = (train(build(folder, tmp_path / str(b), b, "lora", **options)) for b in (60, None))
    assert_same_run(split, whole, metrics=False)  # entropy and clip ratios are over the rows that ran
    assert sum(rows for rows, _ in split.shapes) < 0.8 * sum(rows for rows, _ in whole.shapes)
    assert split.state.log_history[0]["sage/rows_skipped"] > 0.2


def test_rows_with_a_penalty_in_the_loss_are_not_skipped(folder, tmp_path):
    for options in ({"guide": "none"}, {"guide": "none", "beta": 0.0, "entropy_coef": 0.1}):
        trainer = train(build(folder, tmp_path, 60, reward=half_flat, **options))
        assert trainer.state.log_history[0]["sage/rows_skipped"] == 0


def test_a_slice_that_weighs_nothing_still_steps(folder, tmp_path):
    flat = lambda completions, **kwargs: [1.0] * len(completions)  # noqa: E731
    trainer = train(build(folder, tmp_path, 60, reward=flat, guide="none", beta=0.0))
    assert {rows for rows, _ in trainer.shapes} == {1}
    assert all(float(g.norm()) == 0 for _, grads in trainer.record for g in grads.values())


# ---- what it saves, and what it does at the edges -------------------------------------------------------------------


def test_padding_is_saved_and_the_budget_kept(folder, tmp_path):
    split, whole = (train(build(folder, tmp_path / str(b), b, guide="branch")) for b in (60, None))
    tokens = lambda trainer: sum(rows * width for rows, width in trainer.shapes)  # noqa: E731
    assert all(rows * width <= 60 for rows, width in split.shapes)
    assert tokens(split) < 0.6 * tokens(whole)
    assert sum(rows for rows, _ in split.shapes) == sum(rows for rows, _ in whole.shapes)


def test_a_budget_below_the_longest_row_is_said_once(folder, tmp_path, capsys):
    trainer = train(build(folder, tmp_path, 4, guide="none"))
    assert {rows for rows, _ in trainer.shapes} == {1}
    assert capsys.readouterr().out.count("over tokens_per_microbatch=4") == 1


def test_a_lora_run_has_one_copy_of_the_weights(folder, tmp_path):
    """The reference is the model with its adapter off, packed or not: no second model, same log-probs."""
    for budget in (60, None):
        trainer = build(folder, tmp_path / str(budget), budget, "lora", guide="branch")
        assert trainer.ref_model is None
        train(trainer)
        part = trainer._buffered_inputs[0]
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
        mask = torch.cat([part["prompt_mask"], part["completion_mask"]], 1)
        with torch.no_grad(), trainer.model.disable_adapter():
            logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, :-1] / trainer.temperature
        want = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0][:, -part["completion_ids"].shape[1] :]
        on = part["completion_mask"].bool()
        torch.testing.assert_close(part["ref_per_token_logps"][on].float(), want[on].float(), rtol=1e-4, atol=1e-4)


def test_parts_cover_every_row_once():
    generator = torch.Generator().manual_seed(0)
    prompt, completion = (torch.randint(1, 50, (40,), generator=generator).tolist() for _ in range(2))
    sizes = packing.Lengths(prompt, completion)
    parts = packing.cut(sizes, range(40), 300)
    assert sorted(i for rows in parts for i in rows) == list(range(40))
    assert all(len(rows) * sizes.width(rows) <= 300 for rows in parts)
    for count in (len(parts), len(parts) + 3, 40):
        more = packing.split_to(parts, count)
        assert len(more) == count
        assert sorted(i for rows in more for i in rows) == list(range(40))
        assert all(len(rows) * sizes.width(rows) <= 300 for rows in more)
    assert packing.split_to([[3], [1]], 3, spare=[7, 5]) == [[3], [1], [5]]


def test_trimmed_columns_are_padding_and_nothing_else():
    prompt_mask = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]])
    completion_mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    sizes = packing.lengths(prompt_mask, completion_mask)
    assert sizes == packing.Lengths([2, 3, 1], [3, 2, 2])
    batch = {"prompt_ids": torch.arange(12).view(3, 4), "prompt_mask": prompt_mask, "completion_mask": completion_mask,
             "completion_ids": torch.arange(15).view(3, 5), "advantages": torch.arange(3.0), "ratio": torch.ones(3, 1),
             "num_items_in_batch": torch.tensor(4), "tool_mask": None}  # fmt: skip
    part = packing.select(batch, [2, 0], sizes)
    assert part["prompt_ids"].tolist() == [[10, 11], [2, 3]]
    assert part["completion_ids"].tolist() == [[10, 11, 12], [0, 1, 2]]
    assert part["advantages"].tolist() == [2, 0]
    assert part["ratio"].shape == (2, 1)
    assert part["num_items_in_batch"] == 4
    with pytest.raises(UserError, match="pixel_values"):
        packing.select(batch | {"pixel_values": torch.ones(3)}, [0], sizes)


def test_rows_reach_the_model_straight():
    """Prompt and completion without a gap, padding behind, labels on the completion alone, scores back in their places."""
    ids = torch.tensor([[0, 0, 11, 12, 21, 22, 23], [13, 14, 15, 16, 24, 0, 0], [0, 0, 0, 17, 25, 26, 0]])
    mask = torch.tensor(
        [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0]]
    )  # the last: masked as truncated
    seen = []

    def model(rows, labels):
        seen.append((rows.tolist(), labels.tolist()))
        return labels[:, 1:].double(), None  # the score of a token is its id

    logps, entropies = packing.straight_pass(model, ids, mask, keep=3)
    (rows, labels), none = seen[0], -100
    assert rows == [[11, 12, 21, 22, 23], [13, 14, 15, 16, 24], [17, 0, 0, 0, 0]]
    assert labels == [[none, none, 21, 22, 23], [none] * 4 + [24], [none] * 5]
    assert logps.tolist() == [[21, 22, 23], [24, 0, 0], [0, 0, 0]]
    assert entropies is None


def test_two_processes_pack_to_the_gradient_of_one(folder, tmp_path):
    """Ranks whose rows differ in length and weight make the same number of passes; gradients are one process's, unsplit."""
    cases = {
        "branch": {"guide": "branch", "lora": True},
        "accumulated": {"guide": "none", "loss_type": "dapo", "gradient_accumulation_steps": 2, "lora": True},
        "skipped": {"guide": "none", "beta": 0.0, "flat": True, "lora": True},
    }
    shared = {"max_steps": 2, "shuffle_dataset": False, "optim": "sgd", "global_rows": 16}
    packed = {name: options | shared | {"tokens_per_microbatch": 24} for name, options in cases.items()}
    pair = launch(2, tmp_path, packed)
    for name, options in cases.items():
        one = run_pair.run(
            folder, tmp_path / "one" / name, 16, {k: v for k, v in (options | shared).items() if k != "global_rows"}
        )
        assert len(pair[name]["grads"]) == len(one["grads"]) == 2
        for got, want in zip(pair[name]["grads"], one["grads"]):
            a, b = (torch.cat([g[n].flatten() for n in sorted(want)]) for g in (got, want))
            assert float((a - b).norm()) <= 1e-5 * float(b.norm()) + 1e-9
        for got, want in zip(pair[name]["log"], one["log"]):
            assert got["sage/microbatches"] > 2
            # (slices of an accumulated step hold other rows than one process's)
            for key in ("kl", "entropy", "kl_ref", "clip_ratio/high_max") if name == "branch" else ("reward",):
                assert got.get(key) == pytest.approx(want.get(key), rel=1e-4, abs=1e-6), key
    assert pair["skipped"]["log"][0]["sage/rows_skipped"] > 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"tokens_per_microbatch": 0}, "1 or more"),
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2"),
        ({"use_adaptive_entropy": True}, "use_adaptive_entropy"),
        ({"optim": "lomo"}, "optim"),
    ],
)
def test_what_cannot_be_exact_is_refused(tmp_path, options, word):
    with pytest.raises(UserError, match=word):
        tiny.config(SAGEConfig, tmp_path, **({"tokens_per_microbatch": 100} | options))


@pytest.mark.parametrize("how", ["mean", "count"])
def test_a_loss_that_would_need_the_other_processes_stops_the_run(folder, tmp_path, monkeypatch, how):
    """As a later TRL might: its loss has a mean or a count over all processes in it. Parts know their own alone."""
    theirs = SAGETrainer._compute_loss

    def exchanges(self, model, inputs):
        loss = theirs(self, model, inputs)
        if how == "mean":
            return loss + self.accelerator.gather(loss).mean()
        return loss / self.accelerator.reduce(inputs["completion_mask"].sum(), reduction="sum")

    monkeypatch.setattr(SAGETrainer, "_compute_loss", exchanges)
    with pytest.raises(RuntimeError, match="this TRL exchanges numbers between processes inside its loss"):
        train(build(folder, tmp_path / "split", 60, max_steps=1))
    train(build(folder, tmp_path / "whole", None, max_steps=1))


def test_every_loss_type_of_trl_has_a_weight():
    import inspect

    from trl import GRPOTrainer

    source = inspect.getsource(GRPOTrainer._compute_loss)
    assert all(f'"{name}"' in source for name in LOSSES)
    assert set(microbatches.WEIGHTS) == set(LOSSES)
