"""The page on choosing: every block can be used, every advantage is on it, with the kind, the needs and the defaults it has."""

import re

import pytest
import torch
import yaml

from sage_rlvr.advantage import make_advantage, names_by_kind
from sage_rlvr.advantage.advantage import STAGES
from sage_rlvr.errors import UserError
from sage_rlvr.train.config import SAGEConfig
from sage_rlvr.train.recipes import KINDS, list_recipes, load_recipe, read_yaml, recipes_by_kind
from tests.docs.fences import ROOT, read

PAGE = ROOT / "docs" / "choosing.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = [f for f in read(TEXT, PAGE.name) if f.language == "yaml"]
ROWS = {  # name → (kind and stage, formula, needs, settings, source)
    m[1]: [cell.strip() for cell in re.split(r"(?<!\\)\|", m[2])[:-1]]
    for m in re.finditer(r"^\| `(\w+)` \|(.*)$", TEXT, re.M)
}
NAMES = {name: kind for kind, names in names_by_kind().items() for name in names}
SAID = {"ref_logps": "reference", "logps": "log-probs", "entropies": "entropies", "answers": "answers"}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_is_accepted(block, tmp_path):
    (tmp_path / "own.yaml").write_text(block.text)
    own = read_yaml(tmp_path / "own.yaml")
    known = {"output_dir": str(tmp_path), "use_cpu": True, "guide": "none", "report_to": "none"}
    SAGEConfig(**(known | {"per_device_train_batch_size": 16} | own))
    assert 1 <= len(own) <= 3


def test_there_is_a_block_and_a_verdict_for_each_wish():
    wishes = TEXT.split("## One recommendation per wish")[1].split("## Several at once")[0]
    parts = re.split(r"^\*\*", wishes, flags=re.M)[1:]
    assert len(parts) >= 8
    for part in parts[:-1]:  # the last one is the controls
        assert part.count("```yaml") == 1, part[:60]
        assert re.search(r"^\*(Measured|Only published)\*", part, re.M), part[:60]
        if "*Measured*" in part:
            assert re.search(r"\]\((results|evidence)/\w+\.md", part), part[:60]
        if "*Only published*" in part:
            assert "https://arxiv.org/abs/" in part, part[:60]
    assert "low_rate" in parts[-1]
    assert "random_reward" in parts[-1]
    for name in re.findall(r"[Rr]ecipe `(\w+)`", TEXT):
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
