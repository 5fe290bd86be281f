"""Rollouts: where a completion ends, DAPO's new prompts for flat groups, what a rollout batch costs beside the model."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

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


# ---- DAPO ----------------------------------------------------------------------------------------------------------


def odd_reward(prompts, completions, **kwargs):
    """Flat (all 0) for even prompts, uneven within the group for odd ones."""
    return [float(i % 2) * (int(p.split("+")[0]) % 2) for i, p in enumerate(prompts)]


@pytest.mark.parametrize("rounds", [1, 8])
def test_dynamic_sampling_draws_new_prompts_for_flat_groups(folder, tmp_path, rounds, monkeypatch):
    seen, flat, exchange = [], [], rollouts.exchange_flat_groups

    def exchanged(trainer, output):
        flat.append(int(trainer.credit.flat(output).sum()))
        return exchange(trainer, output)

    monkeypatch.setattr(rollouts, "exchange_flat_groups", exchanged)

    class Spy(SAGETrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append((output, {k: v[-1] for k, v in self._metrics["train"].items()}))
            return output

    options = {"dynamic_sampling": rounds, "per_device_train_batch_size": 24, "max_steps": 3}
    trainer = build(folder, tmp_path, Spy, reward=odd_reward, **options)
    trainer.train()
    assert trainer._stream.seed == trainer.args.seed == 7
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
    for before, (_, m) in zip(flat, seen, strict=True):  # a flat group is no gain in place of a flat one
        assert m["sage/resampled_groups"] == before - m["sage/flat_groups_left"]
    assert (left == 0) if rounds == 8 else (left > 0)
    history = [h for h in trainer.state.log_history if "reward" in h]
    assert all(h["reward"] <= 0.5 for h in history), "extra rounds are not steps of their own"


def test_prompt_stream_is_a_function_of_seed_and_position():
    data = Dataset.from_dict({"prompt": list("abcdefg")})
    a, b = rollouts.PromptStream(data, 3), rollouts.PromptStream(data, 3)
    walk = [r["prompt"] for r in a.draw(21)]
    assert sorted(walk[:7]) == sorted(walk[7:14]) == list("abcdefg")
    assert walk[:7] != walk[7:14]
    b.position = 10
    assert [r["prompt"] for r in b.draw(11)] == walk[10:]


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
