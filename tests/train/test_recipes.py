"""Recipes: how one extends another, and that the packaged ones are the paper's settings, written down again here."""

from dataclasses import fields
from pathlib import Path

import pytest
from trl import ModelConfig, SFTConfig

from sage_rlvr import cli
from sage_rlvr.advantage import names_by_kind
from sage_rlvr.errors import UserError
from sage_rlvr.launch import recipes
from sage_rlvr.launch.recipes import list_recipes, load_recipe, merged, recipes_by_kind
from sage_rlvr.launch.sft import SFTRun, from_recipe
from sage_rlvr.train.config import SAGEConfig

RUN = {"task", "rows", "prompt_format", "data_dir", "sft", "decontaminate", "random_reward"}  # RunArguments
FRAGMENTS = {"lora", "one_gpu", "rl"}  # no run by itself
SFT = {"sft"}
SHELF = Path(__file__).parents[2] / "recipes"
ONE_GPU = sorted(n for n in list_recipes() if n.startswith(("gsm8k_", "math_")))  # tests/train/test_one_gpu.py
RL = sorted(set(list_recipes()) - FRAGMENTS - SFT - set(ONE_GPU))


# ---- extends -----------------------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def one(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return path

    return one


def test_later_keys_win_mappings_merge_and_null_removes(write):
    write("a.yaml", "x: 1\ny: [1, 2]\ng: {p: 1, q: {r: 1, s: 2}}\nz: 3\n")
    write("b.yaml", "extends: a.yaml\ny: [3]\ng: {q: {r: 5, s: null}, t: 0}\n")
    top = write("c.yaml", "extends: b.yaml\nz: null\nnever: null\nx: {k: 1}\n")
    assert load_recipe(top) == {"x": {"k": 1}, "y": [3], "g": {"p": 1, "q": {"r": 5}, "t": 0}}


def test_merging_leaves_both_sides_as_they_were():
    under, over = {"g": {"p": 1}}, {"g": {"q": 2}}
    assert merged(under, over) == {"g": {"p": 1, "q": 2}}
    assert (under, over) == ({"g": {"p": 1}}, {"g": {"q": 2}})


def test_extends_is_looked_up_beside_the_file_then_among_the_packaged(write, tmp_path, monkeypatch):
    write("deep/own.yaml", "x: 1\n")
    write("deep/branch.yaml", "x: 2\n")
    write("deep/sft.yaml", "y: 1\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe(write("deep/one.yaml", "extends: own.yaml\n")) == {"x": 1}
    assert load_recipe("deep/branch.yaml") == {"x": 2}  # an existing path wins
    assert load_recipe(write("deep/two.yaml", "extends: branch.yaml\n")) == {"x": 2}
    assert load_recipe(write("three.yaml", "extends: branch.yaml\nbeta: 0.1\n")) == load_recipe("branch") | {
        "beta": 0.1
    }
    assert load_recipe(write("four.yaml", "extends: ./deep/../deep/own.yaml\n")) == {"x": 1}
    # the SFT recipe beside a recipe is found from anywhere
    assert Path(load_recipe(write("deep/five.yaml", "sft: sft.yaml\n"))["sft"]) == tmp_path / "deep" / "sft.yaml"
    assert load_recipe(write("six.yaml", "extends: paper.yaml\n"))["sft"] == "sft.yaml"


@pytest.mark.parametrize("name", ["branch", "branch.yaml", "recipes/branch.yaml", "full_1.5b", "authors.yaml"])
def test_packaged_recipes_go_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe(name)["guide"] == "branch"


def test_the_repositorys_files_and_the_packaged_ones_are_the_same():
    for name in list_recipes():
        assert load_recipe(SHELF / f"{name}.yaml") == load_recipe(name)


def test_cycles_are_refused(write):
    write("a.yaml", "extends: b.yaml\n")
    write("b.yaml", "extends: c.yaml\n")
    top = write("c.yaml", "extends: a.yaml\n")
    with pytest.raises(UserError, match=r"recipe c\.yaml extends itself \(c\.yaml → a\.yaml → b\.yaml → c\.yaml\)"):
        load_recipe(top)
    with pytest.raises(UserError, match=r"extends itself \(me\.yaml → me\.yaml\)"):
        load_recipe(write("me.yaml", "extends: me.yaml\n"))


@pytest.mark.parametrize("name", ["brunch", "recipes/brunch.yaml", "elsewhere/branch.yaml", "../branch.yaml", ""])
def test_an_unknown_name_gets_the_nearest_or_all(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        load_recipe(name)
    assert f"there is no recipe {name!r}" in str(error.value)
    for known in ("branch", "exact", "full_1.5b_grpo") if not name else ("perhaps you mean branch",):
        assert known in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x: 1\nx: 2\n", "'x' is there twice"),
        ("g: {a: 1, a: 2}\n", "'a' is there twice"),
        ("x: [1\n", "cannot be read"),
        ("- x\n", "is not a list of 'name: value' lines"),
        ("1: x\n", "is not a list of 'name: value' lines"),
        ("extends: [a.yaml, b.yaml]\n", "is not the name of one recipe"),
        ("extends: nothing.yaml\n", "there is no recipe 'nothing.yaml'"),
        ("x: !!python/object/apply:os.getcwd []\n", "cannot be read"),
    ],
)
def test_a_broken_file_is_one_sentence(write, text, said):
    with pytest.raises(UserError) as error:
        load_recipe(write("a.yaml", text))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_are_numbers(write):
    text = "a: 5e-6\nb: 1E3\nc: -2.5e+1\nd: 1e\ne: e5\nf: 0x1e5\n"
    got = load_recipe(write("a.yaml", text))
    assert got == {"a": 5e-6, "b": 1000.0, "c": -25.0, "d": "1e", "e": "e5", "f": 0x1E5}
    assert load_recipe(write("empty.yaml", "# nothing\n")) == {}


# ---- the packaged recipes ----------------------------------------------------------------------------------------

SHARED_RL = {  # METHOD section 6, row RL
    "task": "dapo-math-17k",
    "rows": 2000,
    "prompt_format": "paper",
    "max_steps": 1000,
    "per_device_train_batch_size": 8,
    "num_generations": 8,
    "temperature": 1.0,
    "min_p": 0.01,
    "top_p": 1.0,
    "top_k": 0,
    "learning_rate": 5e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "optim": "adamw_8bit",
    "epsilon": 0.2,
    "seed": 3407,
    "loss_type": "grpo",
    "scale_rewards": "group",
    "anchor_estimator": "k3",
    "gradient_accumulation_steps": 8,
    "beta": 0.05,
}
LORA = {
    "use_peft": True,
    "lora_r": 8,
    "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
QWEN = {"model_name_or_path": "Qwen/Qwen2.5-Math-7B", "sft": "sft.yaml"} | LORA
CLAMP = {"q_min": 0.6, "q_max": 1.4}
BRANCH = {"guide": "branch", "guide_args": {"ratio": 0.3, "threshold": 1.2, "source": "policy"} | CLAMP}
SCHEDULE = {"periods": 8, "decay": 0.9} | CLAMP
TOKEN = {"alpha": [0.3, 0.1], "sigma": [0.25, 0.1], "normalize": "minmax"} | SCHEDULE
NO_GUIDE = {"guide": "none", "guide_args": ...}  # ...: must not be there
DAPO = {"loss_type": "dapo", "epsilon_high": 0.28, "mask_truncated_completions": True}
R1 = {"model_name_or_path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "sft": ..., "max_completion_length": 8192} | LORA
FULL = {"use_peft": False, "lora_r": ..., "lora_target_modules": ..., "sft": ..., "dtype": "float32"}
SMALL = {"model_name_or_path": "Qwen/Qwen2.5-Math-1.5B-Instruct"} | FULL
MEDIUM = {"model_name_or_path": "Qwen/Qwen2.5-3B-Instruct"} | FULL
ROWS = {  # name → (what its first line says, what differs from SHARED_RL)
    "paper": ("Table 8", QWEN),
    "base": ("Table 1, row Base", QWEN | NO_GUIDE | {"max_steps": 0}),
    "grpo": ("Table 1, row GRPO:", QWEN | NO_GUIDE),
    "grpo_no_kl": ("Table 1, row GRPO w/o KL", QWEN | NO_GUIDE | {"beta": 0.0}),
    "grpo_forward_kl": ("Table 1, row GRPO + forward KL", QWEN | NO_GUIDE | {"anchor_estimator": "forward-value"}),
    "random": (
        "Table 1, row GRPO + Random",
        QWEN | {"guide": "random", "guide_args": {"epsilon": [0.1, 0.0], "sigma": [0.15, 0.05]} | SCHEDULE},
    ),
    "token": ("Table 1, row GRPO + Token", QWEN | {"guide": "token", "guide_args": TOKEN}),
    "branch": ("Table 1, row GRPO + Branch", QWEN | BRANCH),
    "bnpo": ("Table 3, row BNPO (no KL)", QWEN | NO_GUIDE | {"beta": 0.0, "loss_type": "bnpo", "advantage": "beta"}),
    "bnpo_branch": ("Table 3, row BNPO + Branch", QWEN | BRANCH | {"loss_type": "bnpo", "advantage": "beta"}),
    "dapo": ("Table 3, row DAPO (no KL)", QWEN | NO_GUIDE | DAPO | {"beta": 0.0}),
    "dapo_branch": ("Table 3, row DAPO + Branch", QWEN | BRANCH | DAPO),
    "r1_distill": ("Table 4, row GRPO + Branch", R1 | BRANCH),
    "r1_distill_base": ("Table 4, row Base", R1 | NO_GUIDE | {"max_steps": 0}),
    "r1_distill_grpo": ("Table 4, row GRPO", R1 | NO_GUIDE),
    "full_1.5b": ("Figure 6", SMALL | BRANCH),
    "full_1.5b_grpo": ("Figure 6", SMALL | NO_GUIDE),
    "full_3b": ("Figure 6", MEDIUM | BRANCH),
    "full_3b_grpo": ("Figure 6", MEDIUM | NO_GUIDE),
    "authors": (
        "authors' own batch",
        QWEN | BRANCH | {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "lr_scheduler_type": "constant"},
    ),
    "exact": (
        "No row of the paper",
        QWEN | BRANCH
        | {"anchor_estimator": "k1-reward", "scale_rewards": "none", "loss_type": "dr_grpo", "min_p": 0.0},
    ),
    "tempered": (
        "No row of the paper",
        QWEN | {"guide": "tempered", "anchor_estimator": "k3+"}
        | {"guide_args": {"ratio": 0.5, "threshold": 1.2, "kappa_max": 0.5, "source": "policy"}},
    ),
}  # fmt: skip


def rival(name, beta=0.05, **args):
    return QWEN | NO_GUIDE | {"beta": beta, "advantage": name} | ({"advantage_args": args} if args else {})


EXACT = {"anchor_estimator": "k1-reward", "scale_rewards": "none", "loss_type": "dr_grpo", "min_p": 0.0}
RIVALS = {  # name → (the source, what differs): the settings that were published, and no KL where there was none
    "focal": ("2602.06717", rival("focal", beta=0.0, gamma=1.0)),
    "maxrl": ("2602.02710", rival("maxrl", beta=0.0)),
    "passk": ("2508.10751", rival("passk", k=4)),
    "pkpo": ("2505.15201", rival("pkpo", k=4, anneal=0.5)),
    "rarity": ("Ours", rival("rarity", share=1.0)),
    "coverage": ("Ours", rival("coverage", share=1.0)),
    "unlikely": ("2506.02355", rival("unlikely", share=0.25) | {"num_iterations": 2}),
    "smooth": ("2511.19942", rival("smooth", gamma=0.05)),
    "alike": ("2510.20817", rival("alike") | EXACT),
    "signed": ("2506.01347", rival("signed", beta=0.0, right=0.1)),
    "nsr": ("2506.01347", rival("signed", beta=0.0, right=0.0)),
    "risk": ("2509.24261", rival("risk", b=2.0)),
    "clip_cov": (
        "2505.22617",
        rival("clip_cov", beta=0.0, share=2e-4, low=1.0, high=5.0) | {"steps_per_generation": 64},
    ),
    "kl_cov": ("2505.22617", rival("kl_cov", beta=0.0, share=2e-3, coef=1.0) | {"steps_per_generation": 64}),
    "entropy": ("2506.14758", rival("entropy", alpha=0.4, kappa=2.0)),
    "anchor_reset": ("2505.24864", QWEN | NO_GUIDE | {"anchor_reset": 100}),
    "dph": (
        "2509.07430",
        QWEN | NO_GUIDE | {"beta": 0.0, "keep_from": "runs/kept", "keep_divergence": "forward", "keep_coef": 0.05},
    ),
    "group_guide": ("Ours", QWEN | EXACT | {"guide": "group", "guide_args": {"strength": 1.0, "gamma": 1.0}}),
    "value_guide": ("Ours", QWEN | EXACT | {"guide": "value", "guide_args": {"kappa": 1.0}}),
    "grpo_exact": ("exact gradient", QWEN | NO_GUIDE | EXACT),
    "low_rate": ("Control of grpo", QWEN | NO_GUIDE | {"learning_rate": 5e-6 / 3}),
    "random_reward": ("Control of grpo", QWEN | NO_GUIDE | {"random_reward": 0.5}),
}
ROWS |= RIVALS


def test_there_is_a_recipe_for_every_row_and_no_other():
    assert sorted(ROWS) == RL


@pytest.mark.parametrize("name", RL)
def test_a_recipe_has_the_papers_settings(name):
    said, differs = ROWS[name]
    assert said in list_recipes()[name]
    recipe = load_recipe(name)
    for key, value in (SHARED_RL | differs).items():
        assert recipe.get(key, ...) == (pytest.approx(value) if key == "learning_rate" else value), key
        assert type(recipe.get(key, ...)) is type(value), key
    completions = recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"]
    assert completions // recipe["num_generations"] == (1 if name == "authors" else 8)  # prompts a step


@pytest.mark.parametrize("name", RL)
def test_every_key_is_read_by_someone_and_every_value_is_accepted(name, tmp_path):
    recipe = load_recipe(name)
    config = {f.name for f in fields(SAGEConfig)}
    model = {f.name for f in fields(ModelConfig)}
    assert set(recipe) <= config | model | RUN
    assert not RUN & (config | model)
    args = SAGEConfig(output_dir=str(tmp_path), use_cpu=True, **{k: v for k, v in recipe.items() if k in config})
    assert args.generation_batch_size == 8 * {"authors": 2, "clip_cov": 64, "kl_cov": 64}.get(name, 8)
    assert args.get_warmup_steps(1000) == 100
    assert ModelConfig(**{k: v for k, v in recipe.items() if k in model - config})
    assert (args.departures() == []) == (name in ("exact", "grpo_exact", "value_guide"))


@pytest.mark.parametrize("control", ["low_rate", "random_reward"])
def test_a_control_changes_one_thing(control):
    own, other = load_recipe(control), load_recipe("grpo")
    changed = {key for key in own.keys() | other.keys() if own.get(key) != other.get(key)}
    assert changed == ({"learning_rate"} if control == "low_rate" else {"random_reward"})


def test_what_a_rival_changes_is_in_its_own_lines():
    """Three to six lines, and a first one that says whose it is and what of it is not theirs."""
    for name, (source, _) in RIVALS.items():
        text = (SHELF / f"{name}.yaml").read_text()
        assert 4 <= len(text.splitlines()) <= 8, name
        first = text.splitlines()[0]
        if source[0].isdigit():
            assert f"arXiv {source}: " in first, name
            assert "Published: " in first, name


# ---- the list ----------------------------------------------------------------------------------------------------


def test_every_recipe_is_of_one_kind_and_those_of_advantages_are_the_rooms():
    kinds = recipes_by_kind()
    assert sorted(name for names in kinds.values() for name in names) == sorted(list_recipes())
    assert list(kinds) == list(recipes.KINDS)
    for kind, names in names_by_kind().items():
        if kind == "whole":  # GRPO's and BNPO's: rows of the paper
            continue
        assert {load_recipe(name)["advantage"] for name in kinds[kind]} == set(names), kind
    assert {n for n in kinds["paper"] if list_recipes()[n].startswith(("Table", "Figure"))} == set(kinds["paper"])
    assert set(kinds["parts"]) == {"lora", "one_gpu", "paper", "rl", "sft"}
    assert (kinds["run"], next(iter(kinds))) == (ONE_GPU, "run"), "what a person can run comes first"


def test_the_list_is_by_kind_and_fits_80_columns(capsys):
    assert cli.main(["recipes"]) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    headers = [line for line in lines if line and not line.startswith(" ")]
    shown = [header for kind, header in recipes.KINDS.items() if recipes_by_kind()[kind]]
    assert headers == shown
    under, found = "", {}
    for line in lines:
        under = line if line in headers else under
        if line.startswith("  ") and line[2] != " ":
            found[line.split()[0]] = under
    assert found == {name: recipes.KINDS[kind] for kind, names in recipes_by_kind().items() for name in names}
    for name, about in list_recipes().items():  # nothing of it is lost where it is broken into lines
        assert "".join(about.split()) in "".join("".join(lines).split()), name


def test_the_sft_stage_has_the_papers_settings(tmp_path):
    recipe = load_recipe("sft")
    want = {
        "task": "openmathreasoning-mini",
        "prompt_format": "paper",
        "max_length": 2048,
        "max_prompt_share": 0.5,
        "num_train_epochs": 2,
        "per_device_train_batch_size": 1,
        "optim": "adamw_8bit",
        "learning_rate": 2e-4,
        "lr_scheduler_type": "linear",
        "warmup_steps": 5,
        "weight_decay": 0.01,
        "seed": 3407,
    } | LORA
    assert {k: recipe[k] for k in want} == want
    assert recipe.get("gradient_accumulation_steps", 1) == 1
    known = {f.name for f in fields(SFTConfig)} | {f.name for f in fields(SFTRun)}
    assert set(recipe) <= known
    run, config = from_recipe(recipe, tmp_path, model="m")
    assert config.get_warmup_steps(10_000) == 5
    assert (run.keep, run.result) == ("merged", "merged")


def test_every_recipe_says_what_it_is():
    for name, said in list_recipes().items():
        assert said.endswith((".", "rate.")), name
        assert len(said) > 15, name
    assert len(set(list_recipes().values())) == len(list_recipes())


def test_no_two_recipes_share_a_block():
    """Four lines that two files have in common belong into a file that both extend."""
    lines = {
        f.name: {x.partition("#")[0].strip() for x in f.read_text().splitlines() if ":" in x.partition("#")[0]}
        for f in SHELF.glob("*.yaml")
    }
    assert len(lines) > 25
    for a in lines:
        for b in lines:
            if a < b:
                assert len(lines[a] & lines[b]) < 4, (a, b, lines[a] & lines[b])
