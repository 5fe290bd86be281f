"""A bad value gets one sentence and exit code 2; the same in a flag, a recipe and a config."""

import typing

import pytest

from sage_rlvr import SAGEConfig, UserError, cli, values
from sage_rlvr.launch import run

from . import tiny

FLAGS = {
    "use_cpu": "true", "bf16": "false", "model_name_or_path": "base", "max_steps": "1", "task": "countdown", "rows": "4",
    "report_to": "none", "per_device_train_batch_size": "8", "num_generations": "8", "output_dir": "out",
    "decontaminate": "false",
}  # fmt: skip

RECIPES = {
    "rate.yaml": "learning_rate: fast\n",
    "list.yaml": "learning_rate: [1, 2]\n",
    "half.yaml": "num_train_epochs: two\n",
    "whole.yaml": "save_total_limit: 3.5\n",
    "yes.yaml": "weight_decay: true\n",
    "task.yaml": "data_dir: [a]\n",
    "null.yaml": "guide: null\n",
    "key.yaml": "guide_ratio: 1\n",
}

TABLE = [
    (["--guide_args", "{ratio: 0.5, ratoi: 2}"], "guide 'branch' has no argument 'ratoi'; it takes ratio,"),
    (["--guide_args", "{ratio: 0.5"], "guide_args='{ratio: 0.5' cannot be read: write it in quotes, like '{name: value"),
    (["--guide_args", "ratio=0.5"], "guide_args='ratio=0.5' must be a dict"),
    (["--lr_scheduler_kwargs", "{a: 1"], "lr_scheduler_kwargs='{a: 1' cannot be read"),
    (["--num_generations", "7"], "num_generations=7 does not divide the rollout batch of 8 completions: set num_generations to "
     "2, 4, 8, or per_device_train_batch_size to a multiple of 7."),
    (["--num_generations", "1"], "num_generations must be 2 or more, and is 1."),
    (["--learning_rate", "fast"], "learning_rate='fast' is not a number."),
    (["--learning_rate", "nan"], "learning_rate must be a finite number, and is nan."),
    (["--max_steps", "1.5"], "max_steps='1.5' is not a whole number."),
    (["--use_peft", "maybe"], "use_peft='maybe' is neither true nor false."),
    (["--guide"], "--guide has no value: write --guide VALUE."),
    (["--guide", "brnach"], "guide='brnach' is unknown: perhaps you mean branch"),
    (["--advantage", "raritty"], "advantage='raritty' is unknown: perhaps you mean rarity"),
    (["--anchor_estimator", "k33"], "anchor_estimator='k33' is unknown: perhaps you mean k3"),
    (["--loss_type", "grop"], "loss_type='grop' is unknown: perhaps you mean grpo"),
    (["--lr_scheduler_type", "cosin"], "lr_scheduler_type='cosin' is unknown: perhaps you mean cosine"),
    (["--optim", "adam"], "optim='adam' is unknown: perhaps you mean adamw_torch"),
    (["--report_to", "wandbb"], "report_to='wandbb' is unknown: perhaps you mean wandb"),
    (["--loss_type", "zzz"], "loss_type='zzz' is unknown: choose from grpo,"),
    (["--beta", "-1"], "beta must be 0 or more, and is -1.0."),
    (["--temperature", "0"], "temperature must be above 0, and is 0.0."),
    (["--top_p", "2"], "top_p must be at most 1, and is 2.0."),
    (["--held_out_every", "0"], "held_out_every must be 1 or more, and is 0."),
    (["--generation_batch_size", "7"], "generation_batch_size (7) must be divisible by the global batch size (8)."),
    (["--model_name_or_path", "./nope"], "there is no file or folder ./nope"),
    (["--output_dir", "file/x"], "file/x cannot be written (Not a directory); name a folder you can write to."),
    (["--output_dir", "base"], "base holds something else (config.json, and no run.json): use another output_dir."),
    (["--lora_r", "0"], "lora_r must be 1 or more, and is 0."),
    (["--lora_dropout", "2"], "lora_dropout must be at most 1, and is 2.0."),
    (["--use_peft", "true", "--lora_target_modules", "q_projj"], "lora_target_modules='q_projj' is no layer of this model that "
     "LoRA can adapt: it has q_proj,"),
    (["--eval_strategy", "steps"], "eval_strategy=steps is TRL's own evaluation, which train does not use: for held-out pass@k"),
    (["--config", "rate.yaml"], "learning_rate='fast' is not a number."),
    (["--config", "list.yaml"], "learning_rate must be a number, and is [1, 2]."),
    (["--config", "half.yaml"], "num_train_epochs='two' is not a number."),
    (["--config", "whole.yaml"], "save_total_limit must be a whole number, and is 3.5."),
    (["--config", "yes.yaml"], "weight_decay must be a number, and is True."),
    (["--config", "task.yaml"], "data_dir must be text, and is ['a']."),
    (["--config", "null.yaml"], "null.yaml: guide: null leaves the default, branch; write guide: none for no guide."),
    (["--config", "key.yaml"], "recipe key.yaml: there is no setting 'guide_ratio'; did you mean guide_"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("values")
    tiny.folder(folder / "base")
    (folder / "file").write_text("")
    for name, text in RECIPES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("argv", "sentence"), TABLE, ids=[" ".join(argv) for argv, _ in TABLE])
def test_a_bad_value_gets_one_sentence(place, monkeypatch, capsys, argv, sentence):
    monkeypatch.chdir(place)
    assert cli.main(["train", *(word for name, value in FLAGS.items() for word in (f"--{name}", value)), *argv]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sage-rlvr train: ")]
    assert sentence in said
    assert not list((place / "out").glob("*")), "nothing was begun"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"guide": None}, "guide=None is not a guide: write guide='none'"),
        ({"guide": 5}, "guide must be text, and is 5."),
        ({"beta": None}, "beta must be a number, and is None."),
        ({"beta": "x"}, "beta must be a number, and is 'x'."),
        ({"num_generations": 7}, "num_generations=7 does not divide the rollout batch of 8"),
        ({"max_steps": 2.0}, "max_steps must be a whole number, and is 2.0."),
    ],
)
def test_a_config_in_a_script_too(tmp_path, settings, sentence):
    with pytest.raises(UserError) as raised:
        SAGEConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **settings)
    assert sentence in str(raised.value)


def test_what_is_right_is_taken(tmp_path):
    """Integers for floats, paths for text, and both ways to write a dict."""
    for text in ("{ratio: 0.5, q_min: 5e-1}", '{"ratio": 0.5, "q_min": 0.5}'):
        more = {"use_cpu": True, "bf16": False, "report_to": "none", "temperature": 1, "stop_strings": ["x"]}
        config = SAGEConfig(tmp_path, guide_args=text, **more)
        assert config.guide_args == {"ratio": 0.5, "q_min": 0.5}
    checked = values._plain_fields(SAGEConfig)
    assert {"beta", "learning_rate", "num_generations", "guide"} <= set(checked)
    assert typing.get_type_hints(SAGEConfig).keys() > checked.keys(), "enums are transformers' to judge"


@pytest.mark.parametrize(
    ("argv", "folder"),
    [
        (["--config", "branch"], "runs/branch"),
        (["--config", "recipes/branch.yaml", "--task", "countdown", "--seed", "0"], "runs/branch-countdown-s0"),
        (["--config", "grpo", "--model_name_or_path", "Qwen/Qwen2.5-0.5B"], "runs/grpo-Qwen2.5-0.5B"),
        (["--task", "gsm8k", "--model_name_or_path", "my models/a b/"], "runs/branch-gsm8k-a-b"),
        (["--guide", "none", "--model_name_or_path", "a/b", "--seed", "7"], "runs/grpo-dapo-math-17k-b-s7"),
        (["--config", "branch", "--seed", "7", "--output_dir", "mine"], "mine"),
    ],
)
def test_runs_with_another_task_model_or_seed_have_another_folder(argv, folder):
    args = run.parse([*argv, "--use_cpu", "true", "--bf16", "false", "--optim", "adamw_torch"])[1]
    assert args.output_dir == folder
    assert not [name for name, value in vars(args).items() if isinstance(value, str) and run.UNNAMED in value]
