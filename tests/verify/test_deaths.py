"""Workers that die, hang, stop and bloat, on purpose."""

import os
import signal

import pytest
from processes import DEADLY, children, eventually, state, template_pid

from sage_rlvr.verify import Verifier


def boxed(answers):
    return [rf"\boxed{{{answer}}}" for answer in answers]


def deadly(timeout_s, workers=2):
    return Verifier(workers=workers, timeout_s=timeout_s, judge_path=DEADLY, memory_mb=512)


@pytest.fixture
def verifier():
    """With a limit that no machine is too busy for: what has an end of its own comes to it."""
    with deadly(timeout_s=600) as v:
        yield v


@pytest.fixture
def hasty():
    """With one that is soon over, for what has none. A busy machine may need longer for harmless answers: ``patiently``."""
    with deadly(timeout_s=1) as v:
        yield v


def patiently(verifier, answers, golds, endless):
    """What was not endless and had no time, or whose gold had none, is asked for again: time-outs are not remembered."""
    verdicts = verifier.judge(boxed(answers), golds)
    for _ in range(300):
        late = [i for i, v in enumerate(verdicts) if "timeout" in v.reason and (v.score is None or i not in endless)]
        if not late:
            break
        again = verifier.judge(boxed([answers[i] for i in late]), [golds[i] for i in late])
        for i, verdict in zip(late, again):
            verdicts[i] = verdict
    return verdicts


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("segfault", "worker died"),
        ("exit", "worker died"),
        ("kill", "worker died"),
        ("hang", "timeout"),
        ("stop", "timeout"),
        ("raise", "judge raised"),
    ],
)
def test_a_bad_worker_costs_one_item(command, reason, request):
    verifier = request.getfixturevalue("hasty" if reason == "timeout" else "verifier")
    answers = ["a", command, "b", f"{command} again", *"cdef"]
    verdicts = patiently(verifier, answers, [*"axbxcdxf"], endless=(1, 3))
    assert [v.score for v in verdicts] == [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    assert [verdicts[i].reason for i in (1, 3, 6)] == [reason, reason, "wrong"]
    assert [v.answer for v in verdicts] == answers


def test_a_worker_that_hangs_is_ended(hasty):
    hasty.score(boxed(["hang 1", "hang 2"]), ["x", "x"])
    template = template_pid(hasty)
    assert eventually(lambda: not children(template))
    assert template_pid(hasty) == template


@pytest.mark.slow
def test_a_thousand_deaths(hasty):
    verifier = hasty
    patiently(verifier, ["a"], ["a"], ())
    template = template_pid(verifier)
    for batch in range(10):
        deaths = [f"{command} {batch} {i}" for i in range(33) for command in ("segfault", "exit", "kill")]
        endless = "stop" if batch else "hang"  # a hang burns its second, a stop sleeps it
        deaths.append(f"{endless} {batch}")
        answers = [answer for i, death in enumerate(deaths) for answer in (death, f"ok {batch} {i}")]
        verdicts = patiently(verifier, answers, answers, endless=range(0, len(answers), 2))
        assert {v.score for v in verdicts[::2]} == {0.0}
        assert verdicts[-2].reason == "timeout"
        assert {v.reason for v in verdicts[1::2]} == {"right"}
    assert template_pid(verifier) == template  # one template bore them all

    def no_more_than_two_and_all_alive():  # a moment's zombie is a death just being noticed; one that stays is a leak
        workers = children(template)
        return len(workers) <= 2 and all(state(worker) != "Z" for worker in workers)

    assert eventually(no_more_than_two_and_all_alive)


def test_an_idle_worker_that_is_killed_costs_nothing(verifier):
    for round_ in range(5):
        answers = [f"{round_} {i}" for i in range(8)]
        assert verifier.score(boxed(answers), answers) == [1.0] * 8
        for worker in children(template_pid(verifier)):
            os.kill(worker, signal.SIGKILL)


def test_a_template_that_is_killed_is_replaced(verifier):
    assert verifier.score(boxed("ab"), [*"ab"]) == [1.0, 1.0]
    template = template_pid(verifier)
    workers = children(template)
    os.kill(template, signal.SIGKILL)
    assert eventually(lambda: not any(map(state, workers)))  # they went with it
    assert verifier.score(boxed("cd"), [*"cd"]) == [1.0, 1.0]
    assert template_pid(verifier) != template


def test_a_gold_that_kills_or_cannot_be_read_is_unverifiable_for_all_its_answers(verifier):
    golds = ["deadly"] * 20 + ["unreadable"] * 20 + ["x"] * 20
    verdicts = verifier.judge(boxed([f"{i}" for i in range(40)] + ["x"] * 20), golds)
    assert [v.score for v in verdicts] == [None] * 40 + [1.0] * 20
    assert [verdicts[i].reason for i in (0, 20)] == ["gold killed the worker", "unverifiable gold"]


def test_a_gold_that_hangs_is_unverifiable_for_all_its_answers(hasty):
    verdicts = hasty.judge(boxed([f"{i}" for i in range(20)]), ["endless"] * 20)
    assert {(v.score, v.reason) for v in verdicts} == {(None, "gold timeout")}


def test_memory_stays_under_its_limit():
    with deadly(timeout_s=600, workers=1) as verifier:
        assert verifier.score(boxed(["grow 512", "grow 512 again", "after"]), ["x", "x", "after"]) == [1.0, 1.0, 1.0]
        assert verifier.score(boxed(["grow 200"]), ["x"]) == [0.0]  # that is: more than 200 MB could be had


def test_a_worker_cannot_write_files(verifier, tmp_path):
    target = tmp_path / "file"
    assert verifier.judge(boxed([f"write {target}"]), ["x"])[0].reason == "judge raised"
    assert not target.exists() or target.stat().st_size == 0


def test_a_judge_that_cannot_be_loaded_is_an_error_not_a_zero():
    with Verifier(workers=2, judge_path="no_such_module:Judge") as verifier:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no_such_module"):
                verifier.score(boxed("ab"), [*"ab"])


def test_close_while_answers_wait(verifier):
    import threading

    errors = []

    def score():
        try:
            verifier.score(boxed([f"sleep 500 {i}" for i in range(200)]), ["x"] * 200)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=score)
    thread.start()
    assert eventually(lambda: verifier._pool is not None and verifier._pool._template._control is not None)
    verifier.close()
    thread.join(600)
    assert errors == ["the verifier was closed while it had answers to judge"]
    assert verifier.score(boxed("a"), ["a"]) == [1.0]  # and it starts again
