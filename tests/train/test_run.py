"""``sage-rlvr train`` from the outside: recipes and flags, SFT then RL on local files, run again, refused changes."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from sage_rlvr import UserError, cli
from sage_rlvr.launch import data, run
from sage_rlvr.models import load_model
from sage_rlvr.runs.checkpoint import last_complete

from .. import forked
from . import tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with a tiny model, a few local problems in the Hub's schema, and two small recipes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tiny.folder(tmp_path / "base")
    data = tmp_path / "data"
    data.mkdir()
    sums = [{"prompt": f"what is {i}+{i % 5}=", "solution": str(i + i % 5)} for i in range(24)]
    (data / "dapo_math_17k_en.jsonl").write_text("".join(json.dumps(r) + "\n" for r in sums))
    worked = [
        {"problem": f"what is {i}+1=", "generated_solution": f"<think>{i} and 1</think>", "expected_answer": str(i + 1)}
        for i in range(16)
    ]
    (data / "openmathreasoning_mini_cot.jsonl").write_text("".join(json.dumps(r) + "\n" for r in worked))
    small = {
        "use_cpu": True,
        "bf16": False,
        "optim": "adamw_torch",
        "logging_steps": 1,
        "report_to": "none",
        "use_peft": True,
    }
    small |= {
        "lora_r": 4,
        "lora_target_modules": ["q_proj", "v_proj"],
        "gradient_checkpointing": False,
        "dtype": "float32",
    }
    small |= {"disable_tqdm": True, "prompt_format": "paper"}
    rl = small | {
        "model_name_or_path": "base",
        "sft": "mysft.yaml",
        "task": "dapo-math-17k",
        "rows": 16,
        "max_steps": 3,
    }
    rl |= {
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 12,
        "save_steps": 1,
        "beta": 0.1,
    }
    sft = {k: v for k, v in small.items() if k not in ("disable_tqdm", "report_to")} | {
        "max_steps": 4,
        "max_length": 512,
    }
    sft |= {"task": "openmathreasoning-mini", "per_device_train_batch_size": 2, "learning_rate": 1e-2, "keep": "merged"}
    (tmp_path / "mysft.yaml").write_text(yaml.safe_dump(sft))
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(rl))
    return tmp_path


def test_recipe_then_flags(place):
    settings, args, model = run.parse(
        ["--config", "tiny.yaml", "--learning_rate", "1e-3", "--guide", "tempered", "--beta", "0.3"]
    )
    assert (args.learning_rate, args.guide, args.beta, args.max_steps) == (1e-3, "tempered", 0.3, 3)
    assert (settings.task, settings.rows, settings.decontaminate) == ("dapo-math-17k", 16, None)
    assert (model.model_name_or_path, model.lora_r, args.output_dir) == ("base", 4, "runs/tiny")
    settings, args, _ = run.parse(["--config", "tiny.yaml", "--decontaminate=false", "--guide_args", '{"ratio": 0.5}'])
    assert settings.decontaminate is False
    assert args.make_guide().ratio == 0.5


@pytest.mark.parametrize("name", ["branch", "recipes/exact.yaml", "dapo_branch", "full_1.5b", "tempered"])
def test_packaged_recipes_parse_with_a_flag(place, name):
    _, args, model = run.parse(
        ["--config", name, "--learning_rate", "1e-6", "--output_dir", "x", "--optim", "adamw_torch"]
    )
    assert args.learning_rate == 1e-6
    assert model.model_name_or_path.startswith("Qwen/")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["--config", "tiny.yaml", "--learning_rat", "1"],
            "there is no setting 'learning_rat'; did you mean learning_rate",
        ),
        (["--config", "odd.yaml"], "recipe odd.yaml: there is no setting 'guide_ratio'; did you mean"),
        (["--config", "nothing"], "there is no recipe 'nothing'"),
        (["--config"], "--config names no recipe"),
        (["--max_steps", "1"], "no model to train"),
        (["--config", "tiny.yaml", "--optim", "adamw_8bit"], "needs bitsandbytes: pip install"),
        (["--config", "tiny.yaml", "--use_vllm", "true"], "use_vllm needs vLLM"),
        (["--config", "tiny.yaml", "--task", "amc"], "amc23"),
        (["--config", "tiny.yaml", "--anchor_estimator", "k3+"], "does nothing"),
    ],
)
def test_mistakes_exit_with_2_and_one_sentence(place, capsys, argv, sentence):
    (place / "odd.yaml").write_text("extends: tiny.yaml\nguide_ratio: 1\n")
    assert cli.main(["train", *argv]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert sentence in said


def test_sft_then_rl_then_nothing_left_to_do(place, capsys):
    assert cli.main(["train", "--config", "tiny.yaml"]) == 0
    printed = capsys.readouterr().out
    assert "trained: runs/tiny" in printed
    assert "decontaminat" in printed.lower()
    assert (place / "runs" / "sft" / "merged" / "config.json").is_file()
    adapter = json.loads((place / "runs" / "tiny" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"].endswith("runs/sft/merged"), "RL starts from SFT's weights"
    record = json.loads((place / "runs" / "tiny" / "run.json").read_text())
    assert record["finished"] is True
    template = (place / "runs" / "tiny" / "chat_template.jinja").read_text()
    assert "<start_working_out>" in template, "a base model without a template gets the paper's"
    card = (place / "runs" / "tiny" / "README.md").read_text()
    assert "branch guide" in card
    before = (place / "runs" / "tiny" / "adapter_model.safetensors").stat().st_mtime_ns
    assert cli.main(["train", "--config", "tiny.yaml"]) == 0
    assert "is finished" in capsys.readouterr().out
    assert (place / "runs" / "tiny" / "adapter_model.safetensors").stat().st_mtime_ns == before
    assert cli.main(["train", "--config", "tiny.yaml", "--beta", "0.2"]) == 2
    assert "was made with beta=0.1 and this run has 0.2" in capsys.readouterr().err
    folder, old = place / "runs" / "tiny", last_complete(place / "runs" / "tiny")
    inode = Path(old).stat().st_ino
    assert cli.main(["train", "--config", "tiny.yaml", "--no_resume"]) == 0
    assert (folder / "earlier-1" / Path(old).name).stat().st_ino == inode, "kept, and out of the way of a resume"
    assert Path(last_complete(folder)).stat().st_ino != inode


def test_a_kept_adapter_is_trained_further_and_its_start_is_the_reference(place):
    """keep: adapter. The reference must be the model after SFT, not the base the adapter sits on."""
    settings, args, model_args = run.parse(["--config", "tiny.yaml", "--decontaminate=false"])
    recipe = yaml.safe_load((place / "mysft.yaml").read_text()) | {"keep": "adapter"}
    (place / "mysft.yaml").write_text(yaml.safe_dump(recipe))
    start = run._sft_stage(settings, args, model_args, "again")
    assert start.name == "adapter"
    trainer = run.build(settings, args, model_args, str(start))
    after_sft, base = load_model(start, dtype="float32"), load_model("base", dtype="float32")
    batch = trainer._prepare_inputs([dict(trainer.train_dataset[0])] * 4)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    keep = batch["completion_ids"].shape[1]

    def logps(model):
        with torch.no_grad():
            logp = model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
        return logp.gather(-1, ids[:, 1:, None])[..., 0][:, -keep:] * batch["completion_mask"]

    reference = batch["ref_per_token_logps"] * batch["completion_mask"]
    assert torch.allclose(reference, logps(after_sft), atol=1e-3)
    assert (reference - logps(base)).abs().max() > 0.05


def test_base_takes_no_rl_step(place, capsys):
    assert cli.main(["train", "--config", "tiny.yaml", "--max_steps", "0"]) == 0
    assert "RL takes no step" in capsys.readouterr().out
    assert not (place / "runs" / "tiny").exists()


def test_held_out_tasks_are_measured(place):
    assert cli.main(["train", "--config", "tiny.yaml", "--sft", "none", "--decontaminate=false"]) == 2, (
        "no such SFT recipe"
    )
    recipe = yaml.safe_load((place / "tiny.yaml").read_text())
    del recipe["sft"]
    (place / "tiny.yaml").write_text(yaml.safe_dump(recipe | {"held_out": ["countdown-ltr"], "held_out_every": 3}))
    argv = ["--config", "tiny.yaml", "--decontaminate=false", "--held_out_n", "2", "--held_out_rows", "3"]
    assert cli.main(["train", *argv]) == 0
    (checkpoint,) = (place / "runs" / "tiny").glob("checkpoint-3")
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    assert any("held_out/countdown-ltr/pass@2" in h for h in history)


def test_push_to_hub_is_asked_for_after_the_weights_are_saved(place, monkeypatch):
    calls = []
    monkeypatch.setattr(run.SAGETrainer, "init_hf_repo", lambda self, token=None: None)
    monkeypatch.setattr(run.SAGETrainer, "_push_from_checkpoint", lambda self, folder: None)
    monkeypatch.setattr(
        run.SAGETrainer,
        "push_to_hub",
        lambda self, **kw: calls.append((kw, Path(self.args.output_dir, "adapter_config.json").is_file())),
    )
    argv = [
        "--config",
        "tiny.yaml",
        "--decontaminate=false",
        "--push_to_hub",
        "true",
        "--hub_model_id",
        "me/x",
        "--max_steps",
        "1",
    ]
    assert cli.main(["train", *argv]) == 0
    assert ({"dataset_name": "dapo-math-17k"}, True) in calls


def test_help_teaches(capsys):
    assert cli.main(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    for word in ("--anchor_estimator", "--guide_hold", "example: sage-rlvr train", "dapo_branch", "--help_all"):
        assert word in printed
    assert cli.main(["recipes", "exact"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["anchor_estimator"] == "k1-reward"


def test_merge_and_export(place, capsys):
    assert cli.main(["train", "--config", "tiny.yaml", "--decontaminate=false"]) == 0
    assert cli.main(["merge", "runs/tiny", "--out", "whole"]) == 0
    assert cli.main(["export", "runs/tiny", "--out", "half", "--dtype", "bfloat16"]) == 0
    ids = torch.tensor([[4, 13, 5, 16]])
    with torch.no_grad():
        a = load_model("runs/tiny", dtype="float32")(ids).logits
        b = load_model("whole", dtype="float32")(ids).logits
    assert torch.allclose(a, b, atol=1e-4)
    assert load_model("half").dtype == torch.bfloat16


def test_the_example_runs(tmp_path):
    """What a TRL user reads first, in 50 lines, two of them changed."""
    code = (ROOT / "examples" / "grpo_to_sage.py").read_text()
    assert len(code.splitlines()) <= 50
    assert code.count("← was:") == 2
    done = forked.run(forked.script, ROOT / "examples" / "grpo_to_sage.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20/20  reward" in done.stdout


def test_a_user_error_has_a_type():
    assert issubclass(UserError, ValueError)


def test_a_generated_task_has_as_many_rows_as_are_asked_for():
    asked = run.RunArguments(task="countdown-ltr", rows=1100, decontaminate=False)
    found = data.problems(asked, data.candidates(asked))
    assert len(found) == 1100
    assert len({(tuple(sorted(p.meta["numbers"])), p.meta["target"]) for p in found}) == 1100


def test_rows_are_counted_after_decontamination(tmp_path, monkeypatch):
    lines = [json.dumps({"question": f"what is 1 and {i}", "answer": f"#### {i + 1}"}) for i in range(4)]
    (tmp_path / "gsm8k_train.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(data, "_decontaminated", lambda run, loaded: loaded[1:])
    settings = run.RunArguments(task="gsm8k", data_dir=str(tmp_path), rows=2)
    assert [problem.question for problem in data.candidates(settings)] == ["what is 1 and 1", "what is 1 and 2"]


def test_a_task_whose_first_split_is_test_trains_on_its_train_split(tmp_path):
    row = {"quiz": "Ann says: Bo is a liar.", "names": ["Ann", "Bo"], "solution": [True, False]}
    for people in range(3, 9):
        for split in ("test", "train"):
            lines = [json.dumps(row | {"quiz": f"{split} {people}: {row['quiz']}"})]
            (tmp_path / f"kk_{people}ppl_{split}.jsonl").write_text("\n".join(lines) + "\n")
    settings = run.RunArguments(task="knights-knaves", data_dir=str(tmp_path), decontaminate=False)
    assert all(problem.question.startswith("train") for problem in data.candidates(settings))
    assert len(data.candidates(settings)) == 6
