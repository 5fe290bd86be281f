"""Scorers and rewards: the golds of every real set verify against themselves, and TRL's calling convention holds."""

import json
import pickle
import sys

import pytest
from rich.console import Console

from sage_rlvr.errors import UserError
from sage_rlvr.tasks import (
    Problem,
    get_task,
    keep_verifiable,
    load_task,
    make_scorer,
    register_scorer,
    task_reward,
)
from sage_rlvr.tasks import console as page
from sage_rlvr.tasks.scorers import SCORERS, completion_text
from sage_rlvr.verify import Verifier
from tests.slow import but_few

MATH = [("aime24", None, 30), ("amc23", None, 40), ("math500", None, 500), ("minerva", None, 40), ("gsm8k", "train", 7473),
        ("gsm8k", "test", 1319), ("dapo-math-17k", None, 14026), ("math", None, 7498)]  # fmt: skip
FAST = {i for i, (name, *_) in enumerate(MATH) if name not in ("math", "minerva")}  # math500 is of math's kind


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2, timeout_s=120) as v:
        yield v


@pytest.mark.parametrize(("name", "split", "count"), but_few(MATH, FAST))
def test_every_answer_verifies_against_itself(shared, verifier, name, split, count):
    problems = load_task(name, shared, split=split)
    assert len(problems) == count
    tagged = verifier.score([f"<SOLUTION>{p.answer}</SOLUTION>" for p in problems], [p.answer for p in problems])
    assert [(p.id, p.answer, v) for p, v in zip(problems, tagged) if v != 1.0] == []


def test_every_assignment_and_solution_verifies_against_itself(shared):
    for p in load_task("knights-knaves", shared):
        gold = json.loads(p.answer)
        said = "; ".join(f"{n}: {'knight' if k else 'knave'}" for n, k in zip(gold["names"], gold["solution"]))
        flipped = said.replace("knight", "K").replace("knave", "knight").replace("K", "knave")
        reward = task_reward("knights-knaves")
        assert reward([f"<SOLUTION>{said}</SOLUTION>", f"<SOLUTION>{flipped}</SOLUTION>"], [p.answer] * 2) == [1.0, 0.0]


def test_unverifiable_golds_are_skipped_not_failed(verifier, caplog):
    golds = ["3", "", "   ", "4", "\\frac{1}{2}"]
    problems = [Problem(f"p{i}", "math500", "q", gold) for i, gold in enumerate(golds)]
    kept, bad = keep_verifiable(problems, verifier)
    assert [p.id for p in kept] == ["p0", "p3", "p4"]
    assert bad == ["p1", "p2"]
    assert "skipped 2" in caplog.text
    with make_scorer("countdown") as scorer:
        kept, bad = keep_verifiable([Problem("c", "countdown", "q", "{}"), *load_task("countdown", limit=3)], scorer)
    assert (len(kept), bad) == (3, ["c"])


def test_a_lent_verifier_is_used(verifier):
    assert make_scorer("amc23", verifier) is verifier
    assert make_scorer("countdown", verifier) is not verifier


def test_lists_must_match():
    with pytest.raises(UserError, match="2 completions but 1 answers"):
        make_scorer("countdown").score(["a", "b"], ["c"])


def test_one_answer_to_two_problems_is_judged_twice():
    golds = [json.dumps({"numbers": [3, 4, 2], "target": target}) for target in (14, 15, 14)]
    with make_scorer("countdown-ltr", fallback=True) as scorer:
        assert scorer.score(["3+4*2"] * 3, golds) == [1.0, 0.0, 1.0]


# ---- TRL ---------------------------------------------------------------------------------------------------------


def test_a_reward_as_trl_calls_it():
    reward = task_reward("countdown-ltr", format="plain")
    assert reward.__name__ == "countdown_ltr_reward"
    gold = json.dumps({"numbers": [3, 4, 2], "target": 14})
    plain = ["3+4*2", "4+3*2=14", "3*4+2", "2+3*4"]
    columns = {"prompts": [""] * 4, "completion_ids": [[]] * 4, "task": ["x"] * 4, "trainer_state": None}
    want = [1.0, 1.0, 1.0, 0.0]
    assert reward(completions=plain, answer=[gold] * 4, **columns) == want
    chats = [[{"role": "assistant", "content": text}] for text in plain]
    assert reward(completions=chats, answer=[gold] * 4, **columns) == want
    assert pickle.loads(pickle.dumps(reward))(plain, [gold] * 4) == want
    assert task_reward("countdown-ltr", format="paper")(plain, [gold] * 4) == [0.0] * 4  # strict: no tags, no answer


def test_the_math_reward(verifier):
    texts = [
        "so <SOLUTION>27</SOLUTION>",
        [{"role": "assistant", "content": r"\boxed{27}"}],
        "27",
        "<SOLUTION>28</SOLUTION>",
    ]
    for reward in (task_reward("amc23"), task_reward("amc23", verifier=verifier)):
        assert reward(texts, ["27"] * 4) == [1.0, 1.0, 0.0, 0.0]
        assert reward(texts[:1], [""]) == [None]
    assert task_reward("amc23", format="plain")(["The answer is 27."], ["27"]) == [1.0]


def test_completions_of_any_shape():
    turns = [
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "t"},
        {"role": "assistant", "content": "b"},
    ]
    assert completion_text(turns) == "b"
    assert completion_text([{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]) == "x"
    assert completion_text([]) == ""
    assert completion_text([{"role": "assistant", "content": None}]) == ""


def test_wrong_names_are_said_at_once():
    with pytest.raises(UserError, match="countdown"):
        task_reward("countdwn")
    with pytest.raises(UserError, match="paper"):
        task_reward("countdown", format="papr")
    with pytest.raises(UserError, match="registered already"):
        register_scorer("math")(lambda answer, gold: 1.0)


def test_a_scorer_of_ones_own(monkeypatch):
    monkeypatch.setitem(SCORERS, "length", lambda answer, gold: float(len(answer) == int(gold)))
    from dataclasses import replace

    task = replace(get_task("amc23"), name="lengths", scorer="length")
    monkeypatch.setitem(sys.modules["sage_rlvr.tasks.registry"].TASKS, "lengths", task)
    assert make_scorer("lengths").score(["<SOLUTION>abc</SOLUTION>"], ["3"]) == [1.0]


# ---- the page ----------------------------------------------------------------------------------------------------


def printed(show, *args, **kwargs) -> str:
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    show(*args, console=console, **kwargs)
    return console.export_text()


def test_the_list_has_every_task():
    text = printed(page.show_list)
    for name in (
        "dapo-math-17k",
        "math500-l5",
        "knights-knaves",
        "countdown-ltr",
        "gym:NAME",
        "CC-BY-NC-SA-4.0",
        "14,116",
    ):
        assert name in text


def test_show_prints_what_the_model_sees(shared):
    text = printed(page.show_problems, "amc23", 3, data_dir=shared)
    assert text.count("<start_working_out>\n") == 3
    assert "gold: 27" in text
    assert "stops at </SOLUTION>" in text
    assert "Cities $A$ and $B$ are $45$ miles apart." in text
    assert "40 of 272" in printed(page.show_problems, "minerva", 1, format="boxed", data_dir=shared)
    with pytest.raises(UserError, match="at least 1"):
        page.show_problems("amc23", 0)


def test_decontamination_is_shown_on_request(shared, tmp_path, monkeypatch):
    """Three problems against one set; the whole one against all of them: test_decontaminate.py."""
    amc = load_task("amc23", shared)
    rows = [{"prompt": p.question, "solution": p.answer} for p in amc[:2]] + [{"prompt": "1+1?", "solution": "2"}]
    (tmp_path / "dapo_math_17k_en.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(page, "evaluation_problems", lambda data_dir: ({"amc23": amc}, {}))
    text = printed(page.show_decontamination, "dapo-math-17k", data_dir=tmp_path, pairs=True)
    assert "decontamination: dropped 2 of 3 training problems" in text
    assert f"exact: dapo_math_17k_en-1 is {amc[1].id} (amc23)" in text
