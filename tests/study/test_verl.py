"""A recipe in verl's words, without verl: what is refused, what is asked for, what verl reads, and what is made of its logs.

That verl takes the words, and a whole study on it, is asked in tests_verl/test_study.py.
"""

import json
import random
import string
import sys

import pytest
import yaml
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

from sage_rlvr.errors import UserError
from sage_rlvr.integrations.verl import reward as reward_file
from sage_rlvr.integrations.verl.options import read_options
from sage_rlvr.launch import on_verl
from sage_rlvr.launch import run as trl_run
from sage_rlvr.launch.recipes import list_recipes
from sage_rlvr.models import load_tokenizer, scratch_model
from sage_rlvr.study import verl
from sage_rlvr.study.plan import load_study
from sage_rlvr.tasks.scorers import task_reward

# a recipe that verl can run
FITS = {
    "task": "countdown-ltr", "rows": 40, "prompt_format": "boxed", "decontaminate": False, "max_steps": 20, "num_generations": 4,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_completion_length": 16, "learning_rate": 1e-3,
    "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.1, "optim": "adamw_torch", "loss_type": "dr_grpo",
    "use_cpu": True, "bf16": False, "report_to": "none", "guide": "none", "seed": 7,
}  # fmt: skip


def parsed(tmp_path, **more):
    recipe = tmp_path / "recipe.yaml"
    settings = FITS | {"model_name_or_path": "base", "output_dir": str(tmp_path / "train")} | more
    recipe.write_text(yaml.safe_dump({k: v for k, v in settings.items() if v is not ...}))
    return trl_run.parse(["--config", str(recipe)])


def words(tmp_path, gpus=1, **more):
    asked = parsed(tmp_path, **more)
    on_verl.check(*asked)
    return dict(
        word.split("=", 1) for word in on_verl.words(on_verl.overrides(*asked, tmp_path / "train", "base", 50, gpus))
    )


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_steps": ...}, "max_steps is not set"),
        ({"min_p": 0.1}, "min_p=0.1"),
        ({"lr_scheduler_type": "linear"}, "lr_scheduler_type='linear'"),
        ({"optim": "adafactor"}, "optim='adafactor'"),
        ({"loss_type": "bnpo"}, "loss_type='bnpo'"),
        ({"scale_rewards": "batch"}, "scale_rewards='batch'"),
        ({"num_iterations": 2}, "several optimizer steps"),
        ({"steps_per_generation": 4}, "several optimizer steps"),
        ({"num_generations": 16, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "steps_per_generation": 2},
         "a part of a group"),
        ({"use_peft": True, "lora_dropout": 0.1}, "lora_dropout=0.1"),
        ({"prompt_format": "paper"}, "ends completions at a string"),
        ({"prompt_format": "plain"}, "reads unmarked answers"),
        ({"stop_strings": ["x"]}, "ends completions at a string"),
        ({"dynamic_sampling": 2}, "dynamic_sampling=2 has no counterpart"),
        ({"anchor_reset": 5, "guide": "branch"}, "anchor_reset=5 has no counterpart"),
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level='sequence'"),
        ({"delta": 1.5}, "delta=1.5"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"random_reward": 0.5}, "random_reward=0.5"),
        ({"held_out": ["countdown-ltr"]}, "held_out="),
        ({"use_rslora": True, "use_peft": True, "lora_dropout": 0.0}, "use_rslora=True"),
        ({"advantage": "clip_cov"}, "gives each token its own advantage"),
        ({"guide": "value", "beta": 0.05}, "needs hidden"),
    ],
)  # fmt: skip
def test_what_verl_has_not_is_refused_by_name(tmp_path, more, said):
    on_verl.check(*parsed(tmp_path))
    with pytest.raises(UserError, match="verl cannot run this") as refused:
        on_verl.check(*parsed(tmp_path, **more))
    assert said in str(refused.value)


def test_all_reasons_are_named_at_once(tmp_path):
    with pytest.raises(UserError) as refused:
        on_verl.check(*parsed(tmp_path, min_p=0.1, delta=1.5, loss_type="bnpo"))
    assert all(said in str(refused.value) for said in ("min_p", "delta", "bnpo"))


def test_recipes_of_one_gpu_run_on_it():
    """The recipes with a log of their own: those for one card."""
    for name in list_recipes():
        if name.startswith(("gsm8k_", "math_", "one_gpu")):
            given = ["--config", f"{name}.yaml", "--use_cpu", "true", "--bf16", "false", "--report_to", "none"]
            on_verl.check(*trl_run.parse(given, read=False))


def test_a_study_names_its_variants(tmp_path, monkeypatch):
    monkeypatch.setattr(verl, "python", lambda: pytest.fail("refused before verl is asked"))
    study = load_study("demo")
    with pytest.raises(UserError, match="does not run on verl") as refused:
        verl.check(study)
    assert all(variant in str(refused.value) for variant in study.variants)


def test_a_python_without_verl_and_none_at_all(tmp_path, monkeypatch):
    file = tmp_path / "one.yaml"
    file.write_text(yaml.safe_dump({
        "base": {"model_name_or_path": "base"}, "train": FITS, "variants": {"grpo": {}}, "seeds": [0],
        "evaluate": {"tasks": ["countdown-ltr"]},
    }))  # fmt: skip
    monkeypatch.setenv(verl.PYTHON, sys.executable)
    with pytest.raises(UserError, match=r"verl is not ready in .*not installed.*docs/howto/verl.md"):
        verl.check(load_study(file))
    python = tmp_path / "python"  # verl is there, and Math-Verify is not
    python.write_text(
        "#!/bin/sh\ncase $1 in -m) exit 0;; *) echo 'Traceback …' >&2; echo 'No module named X' >&2; exit 1;; esac\n"
    )
    python.chmod(0o755)
    monkeypatch.setenv(verl.PYTHON, str(python))
    verl.check(load_study(file))
    file.write_text(file.read_text().replace("countdown-ltr", "gsm8k"))
    with pytest.raises(UserError, match=r"verl is not ready in .*python \(No module named X\)"):
        verl.check(load_study(file))
    monkeypatch.setenv(verl.PYTHON, str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"SAGE_VERL_PYTHON=.*nowhere cannot be started"):
        verl.check(load_study(file))


def test_what_one_engine_began_the_other_does_not_go_on_with(tmp_path):
    asked = parsed(tmp_path)
    folder = tmp_path / "train"
    folder.mkdir()
    record = {"settings": trl_run.settings_of(*asked, "verl"), "finished": False}
    (folder / trl_run.RECORD).write_text(json.dumps(record))
    assert trl_run.read_record(folder, trl_run.settings_of(*asked, "verl")) is False
    with pytest.raises(UserError, match="engine='verl' and this run has 'trl'"):
        trl_run.read_record(folder, trl_run.settings_of(*asked))


# ---- what is asked for -------------------------------------------------------------------------------------------


def test_the_batch_is_trls(tmp_path):
    """16 completions a step in groups of 4: 4 prompts; a warm-up of a tenth of 20 steps."""
    said = words(tmp_path)
    assert (said["data.train_batch_size"], said["actor_rollout_ref.actor.ppo_mini_batch_size"]) == ("4", "4")
    assert said["actor_rollout_ref.rollout.n"] == "4"
    assert said["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == "8"
    assert said["actor_rollout_ref.actor.optim.lr_warmup_steps"] == "2"
    assert said["actor_rollout_ref.actor.loss_agg_mode"] == "'seq-mean-token-sum-norm'"
    assert said["actor_rollout_ref.actor.loss_scale_factor"] == "16"
    assert words(tmp_path, gpus=8)["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == "2"
    packed = words(tmp_path, tokens_per_microbatch=30)
    assert packed["actor_rollout_ref.actor.use_dynamic_bsz"] == "true"
    assert packed["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == "66"  # the longest row there can be


ARMS = [
    {},
    {"beta": 0.0},
    {"guide": "branch", "beta": 0.02, "guide_args": {"ratio": 0.4, "threshold": 1.1}},
    {"guide": "tempered", "anchor_estimator": "k3+", "guide_center": "batch"},
    {"guide": "token", "anchor_estimator": "forward-value", "guide_hold": False},
    {"guide": "branch", "anchor_estimator": "k1-reward", "scale_rewards": "none"},
    {"anchor_estimator": "k2"},
    {"advantage": "maxrl", "beta": 0.0},
    {"advantage": ["rarity", "focal"], "advantage_args": {"focal": {"gamma": 0.7}}},
    {"advantage": "alike", "beta": 0.03, "anchor_estimator": "k1-reward", "scale_rewards": "none"},
    {"advantage": "coverage"},
    {"guide": "verified", "anchor_estimator": "k1-reward", "scale_rewards": "none"},
]


@pytest.mark.parametrize("arm", ARMS, ids=str)
def test_the_plug_in_reads_the_recipe_back(tmp_path, arm):
    asked = parsed(tmp_path, **arm)
    _, args, _ = asked
    on_verl.check(*asked)
    config = on_verl._nested(on_verl.overrides(*asked, tmp_path, "base", 50, 1))
    options, actor = read_options(config), config["actor_rollout_ref"]["actor"]
    assert (options.guide, options.guide_args, options.seed) == (args.guide, args.guide_args or {}, 7)
    if args.guide != "none":
        assert (options.hold, options.center) == (args.guide_hold, args.guide_center)
        assert repr(options.make_guide()) == repr(args.make_guide())
    assert options.by_std == (args.scale_rewards == "group")
    assert options.estimator == (args.anchor_estimator if args.beta else "none")
    if args.anchor_estimator == "k1-reward":
        assert config["algorithm"]["kl_ctrl"]["kl_coef"] == args.beta
        assert not actor["use_kl_loss"]
    else:
        assert actor["kl_loss_coef"] == args.beta
    if args.advantage != "group":
        theirs, ours = options.make_advantage(), args.make_advantage()
        named = {part.name: vars(part) for part in theirs.parts}
        for part in ours.parts:
            assert named[part.name] == vars(part)


# ---- what verl reads ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "scratch"
    return scratch_model(folder, string.printable, width=16, layers=1, heads=2, length=512)


def test_prompts_are_trls(tmp_path, base):
    asked = parsed(tmp_path, model_name_or_path=str(base), prompt_format="boxed")
    run, args, model_args = asked
    folder = tmp_path / "train"
    folder.mkdir()
    longest = on_verl.write_inputs(run, args, str(base), folder)
    table = load_dataset(
        "parquet", data_files=str(folder / "train.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    trainer = trl_run.build(run, args, model_args, str(base))
    theirs = {row["problem"]: row for row in trainer.train_dataset}
    assert len(table) == len(theirs) == 40
    tokenizer = load_tokenizer(folder / "tokenizer")
    lengths = []
    for row in table:
        mine = json.loads(row["extra_info"]["row"])
        assert mine == theirs[mine["problem"]]
        assert row["reward_model"]["ground_truth"] == mine["answer"]
        ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        assert ids == GRPOTrainer._tokenize_prompts(trainer, [mine["prompt"]])[0][0]
        lengths.append(len(ids))
    assert longest == max(lengths)
    assert isinstance(args, GRPOConfig)


def test_too_few_problems_for_a_step_are_said(tmp_path, base):
    run, args, _ = parsed(tmp_path, rows=3)
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match="has 3 problems to train on, and a step takes 4"):
        on_verl.write_inputs(run, args, str(base), tmp_path / "train")


def test_rewards_are_trls(tmp_path, base):
    """Right, wrong and strange completions, one by one as verl asks, and together as TRL does."""
    from sage_rlvr.launch import data
    from sage_rlvr.tasks import rows
    from sage_rlvr.tasks.countdown import solutions

    run, _, _ = parsed(tmp_path, rows=12)
    asked = rows(data.problems(run, data.candidates(run)), "boxed")
    rng, texts = random.Random(3), []
    for row in asked:
        gold = json.loads(row["answer"])
        right = solutions(gold["numbers"], gold["target"])[0]
        odd = [
            "",
            "\\boxed{",
            f"\\boxed{{{right}}}",
            f"\\boxed{{{right}+1}}",
            right,
            "\\boxed{" + "(" * 500 + "}",
            "\x00é∑",
        ]
        texts.append(rng.choice([*odd, f"so \\boxed{{{right}}}."]))
    columns = {name: [row[name] for row in asked] for name in asked[0]}
    together = task_reward("countdown-ltr", "boxed")(
        texts, columns.pop("answer"), prompts=columns.pop("prompt"), **columns
    )
    alone = [
        reward_file.compute_score(
            row["task"], text, row["answer"], {"index": 0, "prompt_format": "boxed", "row": json.dumps(row)}, other=1
        )
        for row, text in zip(asked, texts)
    ]
    assert [one["score"] for one in alone] == together
    assert 0 < sum(together) < len(together)
    assert all(isinstance(one[reward_file.ANSWER], str) for one in alone)


# ---- what is made of its logs ------------------------------------------------------------------------------------


def test_a_step_that_was_taken_again_counts_as_it_was_taken_last(tmp_path):
    def log(number, steps, score, end=""):
        lines = [
            json.dumps({"step": s, "data": {"critic/score/mean": score, "actor/entropy": 1.0, "perf/x": 3}})
            for s in steps
        ]
        (tmp_path / f"verl-{number}.jsonl").write_text("\n".join(lines) + "\n" + end)

    log(0, range(1, 7), 0.1, end='{"step": 7, "da')  # cut by a kill
    log(1, range(5, 11), 0.2)
    log(10, range(9, 10), 0.4)
    verl._copy_log(tmp_path)
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [*range(1, 10)]
    assert [entry["reward"] for entry in entries] == [0.1] * 4 + [0.2] * 4 + [0.4]
    assert set(entries[0]) == {"step", "reward", "entropy"}
