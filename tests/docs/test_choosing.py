"""The pages on settings: every block can be used, every advantage is listed, with the kind, the needs and the defaults it has."""

import re

import pytest
import torch
import yaml

from sage_rlvr.advantage import make_advantage, names_by_kind
from sage_rlvr.advantage.advantage import STAGES
from sage_rlvr.errors import UserError
from sage_rlvr.launch.recipes import KINDS, list_recipes, load_recipe, recipes_by_kind
from sage_rlvr.strict_yaml import read_yaml
from sage_rlvr.train.config import SAGEConfig
from tests.docs.fences import ROOT, read

CHOOSING, ALL = ROOT / "docs" / "choosing.md", ROOT / "docs" / "reference" / "advantages.md"
WISHES, TEXT = (page.read_text(encoding="utf-8") for page in (CHOOSING, ALL))
BLOCKS = [
    f.text
    for page in (CHOOSING, ALL)
    for f in read(page.read_text(encoding="utf-8"), page.name)
    if f.language == "yaml"
]
WISHED = re.findall(
    r"^\| (.+?) \| `(\w+)` \| `({.*?})` \| (.*) \|$", WISHES, re.M
)  # wish, recipe, settings, what is known
ROWS = {  # name → (kind and stage, formula, needs, settings, source)
    m[1]: [cell.strip() for cell in re.split(r"(?<!\\)\|", m[2])[:-1]]
    for m in re.finditer(r"^\| `(\w+)` \|(.*)$", TEXT, re.M)
}
NAMES = {name: kind for kind, names in names_by_kind().items() for name in names}
SAID = {"ref_logps": "reference", "logps": "log-probs", "entropies": "entropies", "answers": "answers"}


@pytest.mark.parametrize("block", [*BLOCKS, *(settings for _, _, settings, _ in WISHED)], ids=str)
def test_every_block_is_accepted(block, tmp_path):
    (tmp_path / "own.yaml").write_text(block)
    own = read_yaml(tmp_path / "own.yaml")
    known = {"output_dir": str(tmp_path), "use_cpu": True, "guide": "none", "report_to": "none"}
    SAGEConfig(**(known | {"per_device_train_batch_size": 16} | own))
    assert 1 <= len(own) <= 3


def test_the_page_is_short_and_recommends_one_thing_first():
    assert len(WISHES.split()) <= 900
    first = WISHES.split("## ")[0]
    assert yaml.safe_load(read(first, "choosing.md")[0].text) == {
        "guide": "none",
        "anchor_estimator": "k3",
        "beta": 0.02,
    }
    for said in ("GRPO with a KL", "not confirmed", "low_rate", "random_reward"):
        assert said in first


def test_each_wish_has_a_recipe_that_has_its_settings_and_a_verdict():
    assert len(WISHED) >= 8
    assert len(WISHED) == len(re.findall(r"^\| .* \| `\w+` \|", WISHES, re.M)), "no row is passed over"
    for wish, recipe, settings, known in WISHED:
        assert len(known.split()) <= 25, wish
        kind = re.match(r"measured: |published \(\[[^]]+\]\(https://arxiv.org/abs/", known)
        assert kind, f"{wish}: say what was measured, or who published it"
        own = load_recipe(recipe)
        for name, value in yaml.safe_load(settings).items():
            if name not in (
                "keep_from",
                "num_generations",
                "num_iterations",
            ):  # the reader's folder, and sizes of a run
                assert own.get(name) == value, f"{recipe}: {name}"
    for name in re.findall(r"[Rr]ecipe `(\w+)`", WISHES):
        assert name in list_recipes()


def test_every_advantage_is_on_the_page_with_its_kind_and_stage():
    assert ROWS.keys() == NAMES.keys()
    for name, kind in NAMES.items():
        assert ROWS[name][0] == f"{kind}, {make_advantage(name).stage}", name


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_it_needs_is_what_it_reads(name):
    one, said = make_advantage(name), ROWS[name][2]
    reads = (one.needs | getattr(one, "reads", frozenset())) - {"lengths"}
    assert {word for word in SAID.values() if word in said} == {SAID[field] for field in reads}


def refused(name, value):
    rewards, ones = torch.tensor([1.0, 0.0, 0.0, value]), -torch.ones(4)
    one = make_advantage(name)
    try:
        one(rewards, 4, logps=ones, ref_logps=ones, answers=["a", "b", "c", "d"])
    except UserError:
        return True
    return False


@pytest.mark.parametrize("name", sorted(NAMES))
def test_which_rewards_it_takes(name):
    said = ROWS[name][2]
    binary, bounded, positive = "0/1 rewards" in said, "rewards in 0..1" in said, "rewards not below 0" in said
    assert refused(name, 0.5) == binary
    assert refused(name, 2.0) == (binary or bounded)
    assert refused(name, -1.0) == (binary or bounded or positive)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_settings_are_the_defaults_and_a_recipe_has_them(name):
    settings = make_advantage(name).settings()
    written = re.match(r"`([^`]+: [^`]+)`", ROWS[name][3])
    if name in ("group", "alike"):  # the run's own scale and beta
        assert written is None
    else:
        given = {k: float(v) for k, v in yaml.safe_load(f"{{{written[1]}}}").items()} if written else {}
        assert given == settings
        shipped = [r for r in recipes_by_kind()[NAMES[name]] if r == name] if NAMES[name] in KINDS else []
        for recipe in shipped:
            assert (load_recipe(recipe).get("advantage_args") or {}) == settings


def test_the_order_is_the_rooms():
    order = re.findall(r"\*\*(\w+)\*\*", TEXT.split("applied by stage:")[1].split("What is refused")[0])
    assert tuple(order) == STAGES


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"advantage": ["rarity", "smooth"]}, "both about answers"),
        ({"advantage": ["maxrl", "signed"]}, "both make the advantages"),
        ({"advantage": ["passk", "rarity"]}, "pays unequally"),
        ({"advantage": ["pkpo", "coverage"]}, "pays unequally"),
        ({"advantage": ["rarity", "beta"]}, "pays above 1"),
        ({"advantage": "rarity", "beta": 0.0}, "asks the reference"),
        ({"advantage": "alike", "anchor_estimator": "k3"}, "k1-reward"),
        ({"advantage": "passk", "advantage_args": {"k": 9}, "num_generations": 8}, "above the group"),
        ({"advantage": "kl_cov"}, "one update per rollout batch"),
    ],
)
def test_what_the_page_says_is_refused_is(settings, said, tmp_path):
    with pytest.raises(UserError, match=said):
        SAGEConfig(output_dir=str(tmp_path), use_cpu=True, guide="none", report_to="none", **settings)
