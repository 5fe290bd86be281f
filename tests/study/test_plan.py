"""Study files: what they say, and what is refused; demonstrations."""

import pytest
import yaml

from sage_rlvr import UserError
from sage_rlvr.evaluate.run import EvalArguments
from sage_rlvr.launch.run import parse
from sage_rlvr.study import job
from sage_rlvr.study.plan import list_studies, load_study, open_folder, read_folder
from sage_rlvr.tasks import generate_ltr, solutions

from ..slow import but_few
from .small import SMALL


@pytest.fixture
def study_file(tmp_path):
    def write(**changes):
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(SMALL | changes))
        return path

    return write


CPU = {"use_cpu": True, "bf16": False}  # so that a machine without a GPU accepts it


def test_the_packaged_studies():
    assert set(list_studies()) == {
        "demo",
        "mini",
        "frontier",
        "confirm",
        "gsm8k_gate",
        "hard",
        "hard_confirm",
        "hard_once",
        "qwen1.5b",
        "qwen1.5b_look",
        "table1",
        "table3",
        "table4",
        "grid",
    }


@pytest.mark.parametrize("every", but_few([False, True], fast=[0]))
def test_packaged_studies_are_whole(tmp_path, every):
    """Every variant, or one of each family: those differ by the value that is swept."""
    for name in list_studies():
        study = load_study(name)
        settings = {key: value for key, value in study.evaluate.items() if key not in ("path", "primary")}
        EvalArguments(model="m", out="o", **settings)
        families = {study.family_of(variant): variant for variant in study.variants}
        for variant in study.variants if every else families.values():
            run = f"{variant}-s{study.seeds[0]}"
            recipe = tmp_path / f"{name}-{run}.yaml"
            settings = study.settings_of(run) | {"model_name_or_path": "m", "output_dir": "o", "sft": None}
            recipe.write_text(yaml.safe_dump({k: v for k, v in settings.items() if v is not None} | CPU))
            _, config, _ = parse(["--config", str(recipe)])  # refuses what does not exist or cannot work together
            assert config.seed == study.variant_of(run)[1]


def test_the_papers_rows_are_in_the_papers_studies():
    table1 = load_study("table1")
    assert list(table1.variants) == ["grpo", "grpo_no_kl", "grpo_forward_kl", "random", "token", "branch"]
    assert table1.settings_of("branch-s3407")["guide_args"]["threshold"] == 1.2
    assert table1.settings_of("grpo_no_kl-s3407")["beta"] == 0.0
    grid = load_study("grid")
    cells = {tuple(map(v["guide_args"].get, ("threshold", "ratio"))) for v in grid.variants.values()}
    assert cells == {(tau, rho) for tau in (0.8, 1.2, 2.0) for rho in (0.1, 0.3, 0.5)}
    assert load_study("table4").settings_of("grpo-s3407")["max_completion_length"] == 8192


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"variants": {}}, "needs at least one entry in variants"),
        ({"seeds": []}, "one in seeds"),
        ({"variants": {"a/b": {}}}, "becomes a folder name"),
        ({"base": {}}, "names either model or scratch"),
        ({"evaluate": {"n": 4}}, "names no tasks"),
        ({"trian": {}}, "there is no part 'trian'"),
        ({"variants": {"a": {"extends": "brunch.yaml"}}}, "extends: brunch.yaml is no recipe"),
        (
            {"variants": {"b": {}, "a": {"blend_of": "bb", "weight": 0.5}}},
            "a is a blend of 'bb', and no such variant .* b",
        ),
        (
            {"variants": {"b": {}, "a": {"blend_of": "b"}}},
            r"a has weight None; give a number from 0 \(the base\) on, 1 is b",
        ),
        ({"variants": {"b": {}, "a": {"blend_of": "b", "weight": -1}}}, "a has weight -1"),
        ({"variants": {"b": {}, "a": {"blend_of": "b", "weight": 1, "beta": 0.1}}}, "not trained: take out beta"),
        ({"variants": {"b": {}, "a": {"blend_of": "b", "weight": 1, "seeds": [5]}}}, "seed 5, which b does not have"),
    ],
)
def test_mistakes_in_a_file(study_file, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        load_study(study_file(**changes))


def test_variants_lie_over_shared_settings_and_recipes(study_file):
    study = load_study(study_file(variants={"paper": {"extends": "branch.yaml", "max_steps": 7}}, seeds=[3, 4]))
    assert study.runs() == ["base", "paper-s3", "paper-s4"]
    settings = study.settings_of("paper-s4")
    assert (settings["seed"], settings["max_steps"], settings["guide"], settings["beta"]) == (4, 7, "branch", 0.05)
    assert "seeds" not in load_study(study_file(variants={"a": {"seeds": [7]}})).settings_of("a-s7")
    assert settings["task"] == "dapo-math-17k", "a recipe a variant extends wins over what is shared"


def test_a_blend_has_the_seeds_and_settings_of_what_it_is_made_of(study_file):
    variants = {"grpo": {"beta": 0.3, "seeds": [2, 5]}, "part": {"blend_of": "grpo", "sweep": {"weight": [0.5, 1]}}}
    study = load_study(study_file(variants=variants))
    assert study.runs() == ["base", *(f"{v}-s{s}" for v in ("grpo", "part+weight0.5", "part+weight1") for s in (2, 5))]
    assert study.blend_of("part+weight0.5-s5") == ("grpo-s5", 0.5)
    assert study.blend_of("grpo-s5") is None
    assert study.settings_of("part+weight0.5-s5") == study.settings_of("grpo-s5")


def test_a_study_extends_another(study_file, tmp_path):
    below = study_file()
    first, *others = SMALL["variants"]
    over = {"extends": below.name, "variants": {first: None, "new": {"beta": 0.5}}, "seeds": [7], "evaluate": {"n": 3}}
    top = tmp_path / "deep" / "top.yaml"
    top.parent.mkdir()
    top.write_text(yaml.safe_dump(over | {"extends": str(below)}))
    study, was = load_study(top), load_study(below)
    assert (study.name, study.base, study.train, study.seeds) == ("top", was.base, was.train, [7])
    assert list(study.variants) == [*others, "new"]
    assert study.evaluate == was.evaluate | {"n": 3}
    (beside := below.parent / "beside.yaml").write_text(yaml.safe_dump(over))
    assert load_study(beside).variants == study.variants
    (packaged := tmp_path / "own.yaml").write_text(
        "extends: qwen1.5b\nseeds: [9]\ntrain: {sft: null, use_vllm: null}\n"
    )
    assert load_study(packaged).runs()[-1] == "tempered-s9"
    was = load_study("qwen1.5b").settings_of("tempered-s0")
    assert was.pop("use_vllm")
    assert "sft" not in was, "its recipe has one"
    assert load_study(packaged).settings_of("tempered-s9") == was | {"seed": 9}
    for text, sentence in {
        "extends: own.yaml\n": r"study own\.yaml extends itself \(own\.yaml → own\.yaml\)",
        "extends: [mini]\n": "not the name of one study",
        "extends: minni\n": "there is no study 'minni'",
    }.items():
        packaged.write_text(text)
        with pytest.raises(UserError, match=sentence):
            load_study(packaged)


def test_the_look_differs_from_its_study_by_seed_and_number_of_samples_alone():
    look, study = load_study("qwen1.5b_look"), load_study("qwen1.5b")
    assert look.runs() == ["base", *(f"{arm}-s3" for arm in study.variants)]
    for arm in study.variants:
        assert look.settings_of(f"{arm}-s3") == study.settings_of(f"{arm}-s0") | {"seed": 3}
    assert look.evaluate == study.evaluate | {"n": 8, "kv_cache_gib": 4}


def test_two_studies_do_not_mix(study_file, tmp_path):
    open_folder(load_study(study_file()), tmp_path / "out")
    with pytest.raises(UserError, match="holds a study whose evaluate differs"):
        open_folder(load_study(study_file(evaluate=SMALL["evaluate"] | {"n": 8})), tmp_path / "out")
    open_folder(load_study(study_file(seeds=[0, 1])), tmp_path / "out")  # more seeds may be added
    first, *others = SMALL["variants"]
    (tmp_path / "out" / f"{first}-s0").mkdir()
    for changes, said in {
        f"the run {first}-s0, which is not in this study": {"variants": {v: SMALL["variants"][v] for v in others}},
        f"{first}-s0, which is not": {"seeds": [1]},
        f"{first}-s0, which has other settings \\(beta\\)": {
            "variants": SMALL["variants"] | {first: SMALL["variants"][first] | {"beta": 9.0}}
        },
    }.items():
        with pytest.raises(UserError, match=changes):
            open_folder(load_study(study_file(**said)), tmp_path / "out")
    free = SMALL["variants"] | {others[0]: {"beta": 9.0}, "new": {"seeds": [7, 8]}}
    open_folder(load_study(study_file(variants=free)), tmp_path / "out")  # what has not begun may change
    assert read_folder(tmp_path / "out").runs()[-2:] == ["new-s7", "new-s8"]
    with pytest.raises(UserError, match="holds no study"):
        read_folder(tmp_path / "nothing")


def test_demonstrations_are_right_and_leave_rl_its_problems():
    rows = job.demonstration_rows(200, after=100)
    shown = set()
    for row in rows:
        numbers, target = row["prompt"].removesuffix(":").split("=")
        shown.add((tuple(sorted(map(int, numbers.split()))), int(target)))
        assert row["completion"] in solutions([int(x) for x in numbers.split()], int(target))
    for others in (generate_ltr(100), generate_ltr(200, split="test")):
        assert not shown & {(tuple(sorted(p.meta["numbers"])), p.meta["target"]) for p in others}


def test_copies_are_the_same_problems_and_guesses_are_guesses():
    """Every copy has its problem's numbers and target; a guess has the last number first, and is right now and then."""
    once, often = (job.demonstration_rows(100, copies=c, task="countdown-ltr-3") for c in (1, 4))
    keys = [
        [(sorted(r["prompt"].split("=")[0].split()), r["prompt"].split("=")[1]) for r in rows] for rows in (once, often)
    ]
    assert keys[0] * 4 == keys[1]
    assert len({r["prompt"] for r in often}) > 2 * len(once)
    guessed = job.demonstration_rows(100, copies=4, task="countdown-ltr-3", guesses=1.0)
    right = 0
    for row in guessed:
        numbers, target = row["prompt"].removesuffix(":").split("=")
        assert row["completion"][0] == numbers[-1]
        assert sorted(row["completion"][::2]) == sorted(numbers.split())
        right += row["completion"] in solutions([int(x) for x in numbers.split()], int(target))
    assert 0 < right < 80
