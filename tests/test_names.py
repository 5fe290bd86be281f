"""The command line's names: one for one thing, the old ones still taken, a suggestion for every misspelling, a quick --help."""

import contextlib
import dataclasses
import difflib
import io
import json
import subprocess
import sys

import pytest

from sage_rlvr import cli
from sage_rlvr.doctor.cards import CARDS, find_card
from sage_rlvr.errors import UserError
from sage_rlvr.names import FIELDS, OLD, closest, field_flags, field_keys, shown_flags


def said_by(argv):
    """(exit code, stdout, stderr) of a command that ends before any work."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(argv)
        except SystemExit as e:  # argparse's --help
            code = e.code or 0
    return code, out.getvalue(), err.getvalue()


# ---- one name, and the old one ---------------------------------------------------------------------------------------

EVAL = ["eval", "--model", "m", "--task", "amc23", "--out", "o"]
TAKEN = [  # a verb, its other words, a shared name, a value, what argparse calls it
    ("eval", EVAL[3:], "model", "m", "model"),
    ("eval", [*EVAL[1:3], *EVAL[5:]], "task", "amc23", "tasks"),
    ("eval", EVAL[1:5], "out", "o", "out"),
    ("eval", EVAL[1:], "max_tokens", "64", "max_tokens"),
    ("analyze", ["grid", "run"], "task", "amc23", "task"),
    ("study", ["frontier", "folder"], "task", "amc23", "task"),
    *((verb, words, "out", "o", "out") for verb, words in {
        "demo": [], "lab": [], "results": ["r"], "compare": ["r"], "analyze": ["support", "r"], "trace": ["r"],
        "tables": ["table1"], "report": ["r"], "study": ["run", "demo"], "merge": ["a"], "export": ["a"],
        "blend": ["a", "--weight", "1"],
    }.items()),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "words", "name", "value", "dest"), TAKEN)
def test_a_verb_takes_the_shared_name_and_the_old_one(verb, words, name, value, dest):
    given = [
        getattr(cli.parse([verb, *words, *flag]), dest)
        for spelled in (name, *(old for old, new in OLD.items() if new == name))
        for flag in ([f"--{spelled}", value], [f"--{spelled}={value}"])
    ]
    assert len(given) >= 4
    assert all(g == given[0] for g in given)
    assert str(given[0]) in (value, f"['{value}']")


def test_train_and_plan_take_both_too(tmp_path):
    from sage_rlvr.launch.run import parse

    shared = ["--model", "m", "--task", "amc23", "--out", "o", "--max_tokens", "64", "--bf16", "false"]
    for argv in (shared, field_flags(shared), shown_flags(field_flags(shared))):
        for verb in ("train", "plan"):
            run, args, model = parse(cli.parse([verb, *argv]).argv)
            found = (model.model_name_or_path, run.task, args.output_dir, args.max_completion_length)
            assert found == ("m", "amc23", "o", 64)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model: m\nout: o\nmax_tokens: 64\nextends: grpo.yaml\n")
    _, args, model = parse([f"--config={recipe}", "--bf16", "false", "--optim", "adamw_torch"])
    assert (model.model_name_or_path, args.output_dir, args.max_completion_length) == ("m", "o", 64)


def test_two_names_of_one_setting_in_a_file_are_refused():
    with pytest.raises(UserError, match=r"mine.yaml: model and model_name_or_path are two names of one setting"):
        field_keys({"model": "a", "model_name_or_path": "b"}, "mine.yaml")


def test_a_study_file_takes_the_shared_names(tmp_path):
    from sage_rlvr.study.plan import load_study

    (tmp_path / "below.yaml").write_text(
        "base: {model_name_or_path: a}\ntrain: {max_completion_length: 8}\nvariants: {grpo: {guide: none}}\nseeds: [0]\n"
        "evaluate: {task: amc23, n: 4}\n"
    )
    (tmp_path / "mine.yaml").write_text("extends: below.yaml\nbase: {model: b}\ntrain: {max_tokens: 16}\n")
    study = load_study(tmp_path / "mine.yaml")
    assert (study.base, study.train, study.evaluate["tasks"]) == (
        {"model_name_or_path": "b"},
        {"max_completion_length": 16},
        ["amc23"],
    )


# ---- a suggestion for every misspelling ------------------------------------------------------------------------------

TRAIN = ["train", "--model", "m", "--bf16", "false"]


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["trian"], "train"),
        (["--versoin"], "--version"),
        ([*EVAL, "--temprature", "1"], "--temperature"),
        (["results", "r", "--levle", "0.9"], "--level"),
        (["study", "tabel", "folder"], "table"),
        (["study", "run", "fronteir"], "frontier"),
        (["analyze", "suport", "r"], "support"),
        (["tasks", "shwo", "amc23"], "show"),
        (["tasks", "show", "gms8k"], "gsm8k"),
        (["tasks", "show", "amc23", "--format", "boxd"], "boxed"),
        (["tables", "tabel1"], "table1"),
        (["recipes", "brnach"], "branch"),
        (["doctor", "--config", "recipes/brnach.yaml"], "branch"),
        (["plan", "--config", "branch", "--gpu", "rtx4900"], "rtx4090"),
        (["plan", "--config", "branch", "--gpuu", "h200"], "--gpu"),
        ([*TRAIN, "--config", "brnach"], "branch"),
        ([*TRAIN, "--learning_rat", "1"], "learning_rate"),
        ([*TRAIN, "--max_token", "1"], "max_tokens"),
        ([*TRAIN, "--guide", "brnach"], "branch"),
        ([*TRAIN, "--anchor_estimator", "k1-rewrad"], "k1-reward"),
        ([*TRAIN, "--advantage", "rartiy"], "rarity"),
        ([*TRAIN, "--loss_type", "dappo"], "dapo"),
        ([*TRAIN, "--accelerate_config", "fsdp"], "fsdp2"),
        (["export", "m", "--out", "o", "--dtpye", "float32"], "--dtype"),
    ],
)
def test_a_misspelling_is_one_sentence_with_the_name_that_was_meant(argv, meant):
    code, out, err = said_by(argv)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    assert meant in err.replace(" ".join(argv[:1]) + ":", "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*EVAL, "--n", "many"], "--n"),
        ([*EVAL, "--trust_remote_code", "maybe"], "neither true nor false"),
        (["merge", "a"], "--out"),
        (["explore", "runs", "--port"], "--port"),
        (["plan", "--config", "branch", "--prompt_tokens", "long"], "--prompt_tokens"),
        ([], "--help"),
    ],
)
def test_wrong_use_is_a_sentence(argv, said):
    code, _, err = said_by(argv)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_every_slip_of_a_known_name_finds_it():
    """Two neighbouring letters swapped, or one left out, in any name of six letters or more."""
    from sage_rlvr.launch.recipes import list_recipes
    from sage_rlvr.tasks import TASKS

    for known in (list(cli.VERBS), list(TASKS), list(list_recipes())):
        for name in (n for n in known if len(n) >= 6):
            for i in range(1, len(name) - 1):
                for slip in (name[:i] + name[i + 1 :], name[:i] + name[i + 1] + name[i] + name[i + 2 :]):
                    found = closest(slip, known)
                    alike = [difflib.SequenceMatcher(None, slip, other).ratio() for other in (found[-1], name)]
                    assert name in found or alike[0] >= alike[1], slip


def test_what_other_trainers_call_it_is_understood():
    for theirs, ours, known in (
        ("lr", "learning_rate", ["lora_r", "learning_rate"]),
        ("--group-size", "num_generations", ["warmup_steps", "num_generations"]),
        ("max_new_tokens", "max_tokens", ["max_tokens", "max_steps"]),
    ):
        assert closest(theirs, known) == [ours]
    assert closest("lr", ["lora_r", "limit"]) != ["learning_rate"], "only where it is known"
    code, _, err = said_by(["eval", "--model", "m", "--task", "amc23", "--out", "o", "--samples", "3"])
    assert code == 2
    assert "--n" in err


# ---- cards ---------------------------------------------------------------------------------------------------------


def test_cards_are_found_however_they_are_spelled():
    for spelled, name in {
        "RTX 4090": "rtx4090", "4090": "rtx4090", "NVIDIA GeForce RTX 3090": "rtx3090", "rtx-5090": "rtx5090",
        "A100-80GB": "a100-80g", "a100 40gb": "a100-40g", "NVIDIA H100": "h100", "h100-80gb": "h100", "L40S": "l40s", "l4": "l4",
        "A10": "a10", "B200": "b200", "H200": "h200",
    }.items():  # fmt: skip
        assert find_card(spelled) is CARDS[name]
    with pytest.raises(UserError, match="perhaps you mean a100-40g or a100-80g"):
        find_card("a100")
    _, printed, _ = said_by(["plan", "--help"])
    assert all(f"  {name} " in printed for name in CARDS)


# ---- help ------------------------------------------------------------------------------------------------------------

HEAVY = ("torch", "trl", "transformers", "vllm", "datasets", "peft", "accelerate", "matplotlib", "pyarrow", "numpy")


def test_help_imports_nothing_heavy():
    """Every verb's --help in one process: what is heavy there at the end was imported by one of them."""
    code = f"""
import contextlib, io, json, sys
from sage_rlvr import cli
blame = {{}}
for argv in [["--help"], *([verb, "--help"] for verb in cli.VERBS)]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        cli.main(argv)
    for name in {HEAVY!r}:
        if name in sys.modules:
            blame.setdefault(name, argv[0])
print(json.dumps(blame))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {}


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_help_fits_80_columns_has_an_example_and_each_flag_once(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = said_by([verb, "--help"])
    assert code == 0
    long = [
        line for line in out.splitlines() if len(line) > 80 and "sage-rlvr" not in line
    ]  # an example is copied whole
    assert not long
    assert f"example: sage-rlvr {verb}" in out
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  --")]
    assert len(listed) == len(set(listed))
    assert not {f"--{old}" for old in OLD} & set(listed)


def test_trains_help_is_read_from_the_source_as_it_is():
    """The fields and defaults that --help reads without importing are those of the classes."""
    from trl import GRPOConfig, ModelConfig

    from sage_rlvr.launch import help as told
    from sage_rlvr.launch.run import RunArguments
    from sage_rlvr.train.config import SAGEConfig

    own = [f for f in dataclasses.fields(SAGEConfig) if f.name in SAGEConfig.__annotations__]
    for module, cls, fields in (
        ("train/config", "SAGEConfig", own),
        ("launch/run", "RunArguments", dataclasses.fields(RunArguments)),
    ):
        found = told.declared(module, cls)
        assert set(found) == {f.name for f in fields} - told.DERIVED
        for f in fields:
            if f.name in found:
                default = None if f.default is dataclasses.MISSING else f.default
                assert found[f.name] == (f.metadata["help"], default)
    theirs = {f.name: f.default for cls in (ModelConfig, GRPOConfig) for f in dataclasses.fields(cls)}
    for name, (_, default) in told.TRL.items():
        assert theirs[name] == default, name
    assert theirs[FIELDS["max_tokens"]] == told.SHARED["max_tokens"][1]


# ---- eval's defaults ---------------------------------------------------------------------------------------------------


def test_eval_says_what_it_samples_and_its_default_is_small():
    from sage_rlvr.evaluate.arguments import EvalArguments

    args = EvalArguments(model="m", tasks="amc23", out="o")
    assert (args.n, args.seeds, args.temperature) == (16, [0], 1.0)
    assert args.said(40) == (
        "eval: 40 problems × 1 seed × n 16 = 640 samples, temperature 1, top_p 1, min_p 0.01, at most 2,048 tokens"
    )


def test_packaged_studies_state_their_sampling():
    """So that eval's defaults may change without changing a published setting."""
    from sage_rlvr.study.plan import list_studies, load_study

    for name in list_studies():
        assert {"n", "seeds", "temperature"} <= load_study(name).evaluate.keys(), name
