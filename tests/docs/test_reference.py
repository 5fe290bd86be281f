"""The reference pages say what the code says: flags, settings, refusals, metrics."""

import ast
import inspect
import re
import traceback

import pytest

from docs_tools import reference
from docs_tools.refusals import CASES
from sage_rlvr import UserError
from sage_rlvr.train import SAGEConfig, config, keep_from, reset, token_credit
from tests.docs.fences import ROOT
from tests.train import tiny

METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", reference.PAGES)
def test_made_pages_are_as_the_code_makes_them(page):
    there = (reference.FOLDER / page).read_text(encoding="utf-8")
    assert there == reference.made(page), f"docs/reference/{page} is stale: run 'make reference'"


def raises(where):
    """(file, line) of every refusal in a class or function."""
    lines, first = inspect.getsourcelines(where)
    tree = ast.parse(inspect.cleandoc("\n" + "".join(lines)) if isinstance(where, type) else "".join(lines))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return {(inspect.getsourcefile(where), first + node.lineno - 1) for node in found}


def test_every_refusal_of_a_config_is_on_the_page():
    wanted = set().union(*map(raises, (SAGEConfig, reset.check, keep_from.check, token_credit.check)))
    met = set()
    for given in (given for cases in CASES.values() for given in cases):
        with pytest.raises(UserError) as e:
            SAGEConfig(output_dir="runs/x", report_to="none", use_cpu=True, bf16=False, **given)
        met |= {(frame.filename, frame.lineno) for frame in traceback.extract_tb(e.value.__traceback__)}
    missing = sorted(wanted - met)
    assert not missing, f"add a case to docs_tools/refusals.py for {missing}, then 'make reference'"
    assert len(wanted) > 30
    assert config.__file__ in {file for file, _ in wanted}


# ---- metrics -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """What runs log that between them use most settings, without what TRL logs by itself."""
    from trl import GRPOConfig, GRPOTrainer

    folder = tiny.folder(tmp_path_factory.mktemp("tiny"))

    def names(cls, kind, **options):
        args = tiny.config(kind, tmp_path_factory.mktemp("run"), **options)
        trainer = cls(folder, tiny.hash_reward, args, tiny.dataset(), rollout_func=tiny.given_rollouts)
        trainer.train()
        return {name for line in trainer.state.log_history for name in line}

    from sage_rlvr.train import SAGETrainer

    ours = names(
        SAGETrainer, SAGEConfig, anchor_estimator="k1-reward", dynamic_sampling=1, anchor_reset=1, advantage="entropy"
    )
    ours |= names(SAGETrainer, SAGEConfig, guide="value", anchor_estimator="k1-reward")
    return ours - names(GRPOTrainer, GRPOConfig, beta=0.0)


def told():
    rows = [line.split(" | ")[0] for line in METRICS.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_metric_is_on_the_page(logged):
    assert len(logged) > 20
    assert not logged - set(told())


def test_the_page_tells_of_no_other(logged):
    """What those runs do not log must at least stand in the source under that name."""
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "src" / "sage_rlvr").rglob("*.py"))
    parts = {"errors": '"errors"'}
    for name in told():
        if name not in logged:
            place = parts.get(name) or re.sub(r"(?<=/)TASK/pass@\w+", "", name)
            assert place in source, f"docs/reference/metrics.md tells of {name}, which nothing logs"
