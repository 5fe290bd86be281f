"""The SFT stage on a tiny model: what is learnt, what RL's reference then is, and what survives a kill."""

import json
import os
import signal
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig

from sage_rlvr.errors import UserError
from sage_rlvr.launch import sft
from sage_rlvr.launch.sft import RECORD, SFTRun, from_recipe, run_sft, tokenised
from sage_rlvr.models import load_model, load_tokenizer
from sage_rlvr.runs.checkpoint import last_complete
from sage_rlvr.tasks import PAPER_CHAT_TEMPLATE, Problem, sft_rows
from tests import forked
from tests.models import tiny
from tests.slow import but_few

ROWS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(6) for b in range(4)]


def config(out, **kw) -> SFTConfig:
    settings = {
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "learning_rate": 2e-2,
        "lr_scheduler_type": "constant",
        "max_length": 64,
        "save_steps": 2,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "seed": 3,
    }
    return SFTConfig(output_dir=str(out), **(settings | kw))


@pytest.fixture
def base(tmp_path):
    return tiny.save_base(tmp_path / "base")


def weights(folder):
    (file,) = folder.glob("*model.safetensors")
    return load_file(file)


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---- what is learnt ----------------------------------------------------------------------------------------------


def completion_loss(folder) -> float:
    """Mean −log p of completion tokens, computed by hand from the logits."""
    model, tok = load_model(folder, dtype="float32").eval(), load_tokenizer(folder)
    total = count = 0
    for row in ROWS:
        prompt, answer = tok(row["prompt"])["input_ids"], tok(row["completion"])["input_ids"] + [tok.eos_token_id]
        ids = torch.tensor([prompt + answer])
        with torch.no_grad():
            logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        total -= float(logps[range(len(prompt) - 1, ids.shape[1] - 1), answer].sum())
        count += len(answer)
    return total / count


@pytest.mark.parametrize(
    ("how", "name"),
    but_few([({"keep": "merged"}, "merged"), ({"keep": "adapter"}, "adapter"), ({"use_peft": False}, "model")], {0, 2}),
)
def test_the_stage_teaches_and_returns_what_rl_starts_from(tmp_path, base, how, name):
    rate = 5e-3 if "use_peft" in how else 2e-2
    out = run_sft(SFTRun(model=str(base), **how), config(tmp_path / "sft", max_steps=30, learning_rate=rate), ROWS)
    assert out == tmp_path / "sft" / name
    assert completion_loss(out) < 0.5 * completion_loss(base)
    assert (out / "adapter_config.json").exists() == (name == "adapter")
    assert load_tokenizer(out).chat_template == PAPER_CHAT_TEMPLATE  # the base has none
    if name == "merged":
        want = tiny.logits(load_model(tmp_path / "sft" / "adapter"))
        torch.testing.assert_close(tiny.logits(load_model(out)), want, atol=1e-5, rtol=1e-5)


@contextmanager
def told_to(callback):
    """The stage's trainer tells this callback, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sft, "StageTrainer", partial(sft.StageTrainer, callbacks=[callback]))
        yield


def test_loss_is_on_the_completion_alone(tmp_path, base):
    """Rows with equal completions and different prompts: the first step's loss is that of the completion tokens."""
    seen = []

    class Watch(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kw):
            seen.append(logs)

    one = config(tmp_path / "sft", max_steps=1, per_device_train_batch_size=len(ROWS))
    with told_to(Watch()):
        run_sft(SFTRun(model=str(base)), one, ROWS)
    assert seen[0]["loss"] == pytest.approx(completion_loss(base), rel=1e-4)


def test_prompt_and_completion_are_tokenised_where_generation_begins():
    """A tokenizer that merges over the boundary: '>' and the next letter are one token if seen together."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from sage_rlvr.tasks import chat_template

    pieces = ["<pad>", "<eos>", *tiny.ALPHABET, *[f">{c}" for c in "abcdefgh"]]
    backend = Tokenizer(models.WordLevel({t: i for i, t in enumerate(pieces)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r">[a-h]|[\s\S]"), "isolated")
    tok = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
    tok.chat_template = chat_template(tok, "paper")
    problem = Problem("p", "t", "1+1", "2", {"generated_solution": "<think>abc</think>"})
    (row,) = sft_rows([problem], "paper")
    (example,) = tokenised([row], tok, None, 1.0)
    prompt = tok.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)["input_ids"]
    start = example["completion_mask"].index(1)
    assert example["input_ids"][:start] == prompt  # exactly what generation is given
    text = tok.convert_ids_to_tokens(example["input_ids"][start:])
    assert text[0] == "a"
    assert text[-1] == "<eos>"
    together = tok.apply_chat_template(row["prompt"] + row["completion"], return_dict=True)["input_ids"]
    assert together != example["input_ids"]  # ">a" is one token there: the test's premise


def test_rows_with_long_prompts_are_left_out_and_cut_ones_are_told(caplog):
    tok = tiny.tokenizer()
    rows = [{"prompt": "a" * n, "completion": "b" * 8} for n in (4, 16, 17, 30)]
    kept = tokenised(rows, tok, 32, 0.5)
    assert [row["completion_mask"].count(0) for row in kept] == [4, 16]
    assert "2 of 4 rows left out, prompt over 16 tokens" in caplog.text
    assert len(tokenised(rows, tok, None, 0.5)) == 4
    tokenised(rows, tok, 32, 0.9)
    assert "completions are cut at max_length=32" not in caplog.text
    tokenised(rows, tok, 32, 1.0)
    assert "1 of 4 completions are cut at max_length=32" in caplog.text
    with pytest.raises(UserError, match="all 4 prompts are longer than 3 tokens"):
        tokenised(rows, tok, 32, 0.1)
    with pytest.raises(UserError, match="there are no rows"):
        tokenised([], tok, 32, 0.5)
    with pytest.raises(UserError, match="row 0: prompt and completion must both be text or both be lists"):
        tokenised([{"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]}], tok, 32, 0.5)


def test_a_completion_without_the_prefix_is_refused(base):
    tok = load_tokenizer(base, chat_template=PAPER_CHAT_TEMPLATE)
    ask = [{"role": "user", "content": "1+1"}]
    with pytest.raises(UserError, match="does not begin as the chat template begins an answer"):
        tokenised([{"prompt": ask, "completion": [{"role": "assistant", "content": "2"}]}], tok, 64, 1.0)


def test_the_tasks_own_rows_are_used(tmp_path, base):
    row = {"problem": "how many", "expected_answer": "3", "generated_solution": "one two three"}
    data = tmp_path / "data"
    data.mkdir()
    text = "\n".join(json.dumps(row | {"problem": f"how many {i}"}) for i in range(6))
    (data / "openmathreasoning_mini_cot.jsonl").write_text(text)
    run = SFTRun(model=str(base), data_dir=str(data), rows=4, decontaminate=False, keep="adapter")
    out = run_sft(run, config(tmp_path / "sft", max_steps=1, max_length=512, max_grad_norm=1.0))
    assert out.is_dir()
    record = json.loads((tmp_path / "sft" / RECORD).read_text())
    assert record["settings"]["dataset"].startswith("4 rows")
    (data / "openmathreasoning_mini_cot.jsonl").unlink()
    assert run_sft(run, config(tmp_path / "sft", max_steps=1, max_length=512)) == out  # finished: no data needed


# ---- the reference of the RL stage -------------------------------------------------------------------------------


def first_rollouts(model, tok, out, peft_config=None):
    """What TRL itself computes for a fresh batch: ids, mask, and the reference's log-probs."""
    args = GRPOConfig(
        output_dir=str(out), per_device_train_batch_size=4, num_generations=4, max_completion_length=6, beta=0.05,
        max_steps=1, bf16=False, use_cpu=True, report_to="none", disable_tqdm=True, gradient_checkpointing=False,
    )  # fmt: skip
    from datasets import Dataset

    trainer = GRPOTrainer(
        model=model,
        args=args,
        reward_funcs=lambda completions, **kw: [float(len(c)) for c in completions],
        train_dataset=Dataset.from_list([{"prompt": r["prompt"]} for r in ROWS]),
        processing_class=tok,
        peft_config=peft_config,
    )
    trainer.model.train()
    # move the policy, so that the reference is not right by being the policy
    with torch.no_grad():
        for name, p in trainer.model.named_parameters():
            if p.requires_grad and ".ref." not in name:
                p.add_(0.05)
    return trainer, trainer._generate_and_score_completions([{"prompt": ROWS[5]["prompt"]}] * 4)


def by_hand(folder, batch):
    """log p of each completion token, (B, T), from the logits of the model in that folder."""
    model = load_model(folder, dtype="float32").eval()
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        logps = model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    picked = logps.gather(-1, ids[:, 1:, None])[..., 0]
    return picked[:, -batch["completion_ids"].shape[1] :]


@pytest.mark.parametrize("keep", ["merged", "adapter"])
def test_the_reference_is_the_model_after_sft(tmp_path, base, keep):
    sft = run_sft(SFTRun(model=str(base), keep=keep), config(tmp_path / "sft", max_steps=10), ROWS)
    tok = load_tokenizer(sft)
    lora = LoraConfig(r=4, target_modules=tiny.TARGETS, task_type="CAUSAL_LM", init_lora_weights=False)
    model = load_model(sft, dtype="float32", trainable_adapter=True)
    trainer, batch = first_rollouts(model, tok, tmp_path / "rl", lora if keep == "merged" else None)
    assert trainer.ref_model is None  # one set of weights in memory, either way
    mask = batch["completion_mask"].bool()
    reference = batch["ref_per_token_logps"]
    torch.testing.assert_close(reference[mask], by_hand(sft, batch)[mask], atol=1e-4, rtol=1e-4)
    assert (reference - by_hand(base, batch))[mask].abs().max() > 0.1
    if keep == "adapter":
        trained = {n for n, p in trainer.model.named_parameters() if p.requires_grad}
        assert trained
        assert all(".default." in n for n in trained)


def test_the_reference_of_full_fine_tuning_is_the_model_after_sft(tmp_path, base):
    sft = run_sft(SFTRun(model=str(base), keep="merged"), config(tmp_path / "sft", max_steps=10), ROWS)
    trainer, batch = first_rollouts(load_model(sft, dtype="float32"), load_tokenizer(sft), tmp_path / "rl")
    assert trainer.ref_model is not None
    mask = batch["completion_mask"].bool()
    reference = batch["ref_per_token_logps"]
    torch.testing.assert_close(reference[mask], by_hand(sft, batch)[mask], atol=1e-4, rtol=1e-4)
    assert (reference - by_hand(base, batch))[mask].abs().max() > 0.1


# ---- resuming ----------------------------------------------------------------------------------------------------


class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **kw):
        if state.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(model, out):
    run = SFTRun(model=model, keep="adapter", lora_dropout=0.1)
    with told_to(Kill()):
        run_sft(run, config(out), ROWS)


def test_a_killed_stage_goes_on_from_its_last_complete_checkpoint(tmp_path, base):
    done = forked.run(killed, str(base), str(tmp_path / "killed"))
    assert done.returncode == -signal.SIGKILL, done.stderr
    half = tmp_path / "killed" / "checkpoint-6"  # a save cut short: weights there, the state not
    half.mkdir()
    (half / "adapter_model.safetensors").write_bytes(b"half")
    assert last_complete(tmp_path / "killed").endswith("checkpoint-4")
    (half / "trainer_state.json").write_text('{"global_step": 6, ')
    assert last_complete(tmp_path / "killed").endswith("checkpoint-4")

    class Watch(TrainerCallback):
        steps: ClassVar[list[int]] = []

        def on_step_end(self, args, state, control, **kw):
            self.steps.append(state.global_step)

    run = SFTRun(model=str(base), keep="adapter", lora_dropout=0.1)
    with told_to(Watch()):
        resumed = run_sft(run, config(tmp_path / "killed"), ROWS)
    assert Watch.steps == [5, 6]
    straight = run_sft(run, config(tmp_path / "straight"), ROWS)
    assert same(weights(resumed), weights(straight))
    state = json.loads((tmp_path / "killed" / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["global_step"] == 6
    longer = run_sft(run, config(tmp_path / "longer", max_steps=7), ROWS)
    assert not same(weights(straight), weights(longer))


def test_a_stage_killed_while_merging_merges_again(tmp_path, base, monkeypatch):
    def fail(*args, **kw):
        raise KeyboardInterrupt

    monkeypatch.setattr("sage_rlvr.launch.sft.merge_adapter", fail)
    run = SFTRun(model=str(base))
    with pytest.raises(KeyboardInterrupt):
        run_sft(run, config(tmp_path / "sft"), ROWS)
    monkeypatch.undo()
    monkeypatch.setattr("sage_rlvr.launch.sft.StageTrainer", None)  # nothing is trained again
    assert run_sft(run, config(tmp_path / "sft"), ROWS).name == "merged"


def test_a_finished_stage_is_reused_and_changed_settings_are_refused(tmp_path, base, monkeypatch):
    out = tmp_path / "sft"
    first = run_sft(SFTRun(model=str(base)), config(out, max_steps=2), ROWS)
    monkeypatch.setattr("sage_rlvr.launch.sft.StageTrainer", None)
    # what shapes no weights may change
    assert run_sft(SFTRun(model=str(base)), config(out, max_steps=2, logging_steps=5, save_steps=1), ROWS) == first
    changed = {
        "learning_rate=0.02 and this run has 0.01": (SFTRun(model=str(base)), config(out, max_steps=2, learning_rate=0.01), ROWS),
        "max_steps=2 and this run has 3": (SFTRun(model=str(base)), config(out, max_steps=3), ROWS),
        "lora_r=8 and this run has 4": (SFTRun(model=str(base), lora_r=4), config(out, max_steps=2), ROWS),
        "keep='merged' and this run has 'adapter'": (SFTRun(model=str(base), keep="adapter"), config(out, max_steps=2), ROWS),
        "dataset='24 rows": (SFTRun(model=str(base)), config(out, max_steps=2), ROWS[:-1]),
        "model=": (SFTRun(model="another/model"), config(out, max_steps=2), ROWS),
    }  # fmt: skip
    for said, call in changed.items():
        with pytest.raises(UserError) as error:
            run_sft(*call)
        assert said in str(error.value)
        assert "use another output_dir" in str(error.value)


def test_changed_settings_are_refused_before_the_stage_is_finished_too(tmp_path, base, monkeypatch):
    def fail(*args, **kw):
        raise KeyboardInterrupt

    monkeypatch.setattr("sage_rlvr.launch.sft._train", fail)
    with pytest.raises(KeyboardInterrupt):
        run_sft(SFTRun(model=str(base)), config(tmp_path / "sft"), ROWS)
    with pytest.raises(UserError, match="seed=3 and this run has 4"):
        run_sft(SFTRun(model=str(base)), config(tmp_path / "sft", seed=4), ROWS)


def test_what_cannot_start_is_said(tmp_path, base):
    with pytest.raises(UserError, match="the SFT stage has no model"):
        run_sft(SFTRun(), config(tmp_path / "sft"), ROWS)
    with pytest.raises(UserError, match="completion_only_loss=false"):
        run_sft(SFTRun(model=str(base)), config(tmp_path / "sft", completion_only_loss=False), ROWS)
    adapter = tiny.save_adapter(tmp_path / "adapter", base)
    with pytest.raises(UserError, match="cannot start from the adapter"):
        run_sft(SFTRun(model=str(adapter)), config(tmp_path / "sft"), ROWS)
    (tmp_path / "other" / "checkpoint-3").mkdir(parents=True)
    with pytest.raises(UserError, match="holds checkpoints of another run"):
        run_sft(SFTRun(model=str(base)), config(tmp_path / "other"), ROWS)
    with pytest.raises(UserError, match="keep='both' is unknown"):
        SFTRun(keep="both")
    with pytest.raises(UserError, match="max_prompt_share=0 is a share"):
        SFTRun(max_prompt_share=0)


def test_a_recipe_becomes_the_two_arguments(tmp_path):
    from sage_rlvr.launch.recipes import load_recipe

    run, sft = from_recipe(load_recipe("sft"), tmp_path, model="a/b", optim="adamw_torch", rows=5)
    assert (run.model, run.task, run.rows, run.lora_r, run.keep) == ("a/b", "openmathreasoning-mini", 5, 8, "merged")
    assert (sft.learning_rate, sft.num_train_epochs, sft.max_length, sft.seed) == (2e-4, 2, 2048, 3407)
    assert sft.optim == "adamw_torch"
    with pytest.raises(UserError, match="the SFT recipe has 'learnig_rate'"):
        from_recipe({"learnig_rate": 1}, tmp_path)
