"""Which of the installed reasoning-gym's scorers make code of an answer: found by reading their source, and by watching them."""

import ast
import builtins
import inspect
import json
import subprocess
import sys
import textwrap
from types import FunctionType

import pytest

pytest.importorskip("reasoning_gym", reason="the extra gym is not installed: pip install -e '.[gym]'")

from reasoning_gym.factory import DATASETS

from sage_rlvr.tasks.gym import generators
from sage_rlvr.tasks.gym_rules import _RULES, EVALUATES

# What makes code, or a process, of a text. ast.literal_eval and json.loads do not.
MAKES_CODE = {
    "eval", "exec", "compile", "__import__", "import_module", "parse_expr", "sympify", "S", "lambdify", "parse_latex", "system",
    "popen", "Popen", "run", "check_output", "unsafe_load", "full_load", "getattr", "execute", "run_path",
}  # fmt: skip
PICKLES = {"pickle", "marshal", "shelve", "dill", "yaml", "joblib"}


def evaluated(function, tainted, owner=None, seen=None):
    """Calls in ``function`` that make code of something that came from a tainted parameter, and in what it calls in turn.

    Taint spreads through assignments, loops and with-statements that read a tainted name; into a function of
    reasoning-gym's own by the parameters it is passed to. What is not reasoning-gym's is judged by its name.
    """
    seen = set() if seen is None else seen
    if (function, frozenset(tainted)) in seen:
        return set()
    seen.add((function, frozenset(tainted)))
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    tainted = set(tainted)
    reads = lambda node: any(isinstance(n, ast.Name) and n.id in tainted for n in ast.walk(node))  # noqa: E731
    while True:  # to a fixed point: a loop may carry taint upwards
        before = len(tainted)
        for node in ast.walk(tree):
            source = getattr(node, "value", None) or getattr(node, "iter", None)
            targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
            binds = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For | ast.comprehension
            if isinstance(node, binds) and isinstance(source, ast.AST) and reads(source):
                tainted.update(n.id for t in targets if t for n in ast.walk(t) if isinstance(n, ast.Name))
        if len(tainted) == before:
            break
    found = set()
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        arguments = [*call.args, *(k.value for k in call.keywords)]
        if not any(map(reads, arguments)):
            continue
        callee, name = resolved(call.func, function, owner)
        if isinstance(callee, FunctionType) and callee.__module__.startswith("reasoning_gym"):
            found |= evaluated(callee, passed(callee, call, reads, owner), owner, seen)
        elif isinstance(callee, type) and callee.__module__.startswith("reasoning_gym") and "__init__" in vars(callee):
            found |= evaluated(callee.__init__, passed(callee.__init__, call, reads, owner), callee, seen)
        elif name in MAKES_CODE or (name in ("load", "loads") and ast.unparse(call.func).partition(".")[0] in PICKLES):
            found.add(f"{function.__module__}: {ast.unparse(call)}")
    return found


def resolved(func, function, owner):
    """(the object, None where it is not to be found from here; the last part of its name)."""
    if isinstance(func, ast.Name):
        return function.__globals__.get(func.id, getattr(builtins, func.id, None)), func.id
    if isinstance(func, ast.Attribute):
        if isinstance(func.value, ast.Name) and func.value.id in ("self", "cls"):
            return inspect.unwrap(getattr(owner, func.attr, None)), func.attr
        holder = resolved(func.value, function, owner)[0]
        found = getattr(holder, func.attr, None)
        return getattr(found, "__func__", found), func.attr
    return None, ""


def passed(callee, call, reads, owner):
    names = list(inspect.signature(callee).parameters)
    if names and names[0] in ("self", "cls"):
        names = names[1:]
    by_place = {name for name, argument in zip(names, call.args) if reads(argument)}
    return by_place | {k.arg for k in call.keywords if k.arg and reads(k.value)}


@pytest.mark.parametrize("name", sorted(generators()))
def test_a_scorer_that_evaluates_answers_is_listed(name):
    cls = DATASETS[name][0]
    found = evaluated(cls.score_answer, {"answer"}, cls)
    assert bool(found) == (name in EVALUATES), found or f"{name} evaluates nothing any more"


def test_the_walk_sees_through_calls_and_names():
    def direct(self, answer, entry):
        return eval(answer)

    def renamed(self, answer, entry):
        for part in answer.split():
            x = [part]
        return exec(x[0])

    def other(self, answer, entry):
        return eval(entry["answer"])

    assert evaluated(direct, {"answer"})
    assert evaluated(renamed, {"answer"})
    assert not evaluated(other, {"answer"})


def test_each_of_them_is_judged_by_a_rule_of_ours():
    assert set(EVALUATES) <= set(_RULES)


WATCH = """
import json, sys, warnings
warnings.simplefilter("ignore")
from contextlib import suppress
from sage_rlvr.tasks.gym import _dataset, generators
ran, ours = set(), []
def hook(event, args):
    if event == "exec" and args[0].co_filename == "<string>":
        ours.append(args[0])
sys.addaudithook(hook)
for name in sorted(generators() - {"knight_swap"}):
    generator = _dataset(name, 3, 1)
    entry = generator[0]
    ours.clear()
    with suppress(Exception): generator.score_answer(str(entry["answer"]), entry)
    known = set(ours)
    for text in ["[1, 2]", "1 + x", "('a')", "(4 + 4)*3", "7*2"]:
        with suppress(Exception): generator.score_answer(text, entry)
    if set(ours) - known: ran.add(name)
print(json.dumps(sorted(ran)), file=sys.stderr)
"""


@pytest.mark.slow  # a fresh interpreter; faster, from their source: the test above
def test_watched_at_work_no_other_scorer_runs_an_answer():
    """The interpreter reports each text it runs; what only the entry's own text made it run does not count."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", WATCH], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stderr.splitlines()[-1])) == set(EVALUATES)
