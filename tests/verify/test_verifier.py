"""Order, repetition, and every place a verifier may be used from."""

import gc
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading

import pytest
from processes import DEADLY, children, environment, eventually, gone, state, template_pid

from sage_rlvr.errors import UserError
from sage_rlvr.verify import Verifier
from tests.slow import but_few


def boxed(answers):
    return [rf"\boxed{{{answer}}}" for answer in answers]


@pytest.fixture
def verifier():
    with Verifier(workers=2, timeout_s=600, judge_path=DEADLY) as v:
        yield v


def test_order_is_kept(verifier):
    rng = random.Random(0)
    golds = [str(rng.randint(0, 9)) for _ in range(2000)]
    answers = [str(rng.randint(0, 9)) for _ in range(2000)]
    assert verifier.score(boxed(answers), golds) == [float(g == a) for g, a in zip(golds, answers)]


def test_identical_pairs_are_judged_once():
    # "calls 1" is right only in the worker's first call, "golds 2" only while it has parsed two golds.
    with Verifier(workers=1, timeout_s=600, judge_path=DEADLY) as verifier:
        assert verifier.score(boxed(["calls 1"] * 50), ["x"] * 50) == [1.0] * 50
        assert verifier.score(boxed(["calls 1", "calls 2"]), ["x", "x"]) == [1.0, 1.0]  # the first from the cache
        assert verifier.score(boxed(["calls 3"]), ["y"]) == [1.0]
        assert verifier.score(boxed(["golds 2", "golds 2 b", "golds 2 c"]), ["x", "y", "x"]) == [1.0] * 3


def test_the_cache_is_bounded_and_can_be_off():
    with Verifier(workers=1, timeout_s=600, judge_path=DEADLY, cache_size=10) as verifier:
        verifier.score(boxed([f"{i}" for i in range(100)]), ["x"] * 100)
        assert len(verifier._cache) == 10
    with Verifier(workers=1, timeout_s=600, judge_path=DEADLY, cache_size=0) as verifier:
        assert verifier.score(boxed(["calls 1"]), ["x"]) + verifier.score(boxed(["calls 1"]), ["x"]) == [1.0, 0.0]


def test_nothing_starts_until_it_is_needed(verifier):
    assert verifier._pool is None
    assert verifier.score([], []) == []
    assert verifier.score(["no answer", r"\boxed{1}"], ["1", ""]) == [0.0, None]
    assert verifier._pool is None


def test_reasons_without_a_worker(verifier):
    long = Verifier(max_chars=100, max_answer_chars=10)
    cases = [("x" * 101, "1", 0.0, "too long"), (r"\boxed{12345678901}", "1", 0.0, "too long"), ("?", "1", 0.0, "no answer"),
             (r"\boxed{1}", "1" * 11, None, "gold too long"), (r"\boxed{1}", " ", None, "empty gold")]  # fmt: skip
    for text, gold, score, reason in cases:
        (verdict,) = long.judge([text], [gold])
        assert (verdict.score, verdict.reason, verdict.answer) == (score, reason, None)


def test_fallback_is_off_unless_asked_for():
    assert Verifier().score(["the answer is 12"], ["12"]) == [0.0]
    assert Verifier(fallback=True).score(["the answer is 12"], ["12"]) == [1.0]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"workers": 0}, "workers"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"memory_mb": 10}, "memory_mb"),
        ({"judge_path": "judge"}, "judge_path"),
    ],
)
def test_settings_that_cannot_work(arguments, word):
    with pytest.raises(UserError, match=word):
        Verifier(**arguments)


def test_lists_that_do_not_match(verifier):
    with pytest.raises(UserError, match="one gold per completion"):
        verifier.score(["a", "b"], ["a"])
    with pytest.raises(UserError, match="two lists"):
        verifier.score("ab", ["a", "b"])


def test_many_threads_at_once(verifier):
    wrong = []

    def use(n):
        for i in range(10):
            answers = [f"{n} {i} {j}" for j in range(20)]
            golds = [a if j % 2 else "x" for j, a in enumerate(answers)]
            if verifier.score(boxed(answers), golds) != [0.0, 1.0] * 10:
                wrong.append(n)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)
    assert len(children(template_pid(verifier))) <= 2


def test_a_forked_child_has_its_own_pool(verifier):
    assert verifier.score(boxed("ab"), [*"ab"]) == [1.0, 1.0]
    template = template_pid(verifier)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            answers = [f"child {i}" for i in range(40)]
            scores = verifier.score(boxed(answers), answers)
            code = 0 if scores == [1.0] * 40 and template_pid(verifier) != template else 1
            verifier.close()
        finally:
            os._exit(code)
    answers = [f"parent {i}" for i in range(40)]
    assert verifier.score(boxed(answers), answers) == [1.0] * 40  # at the same time
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert verifier.score(boxed("cd"), [*"cd"]) == [1.0, 1.0]


def _in_process(verifier, pipe):
    scores = verifier.score(boxed(["a", "exit", "b"]), [*"axb"])
    pipe.send((scores, template_pid(verifier), multiprocessing.current_process().daemon))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_a_daemonic_process(verifier, method):
    # Such a process may have no multiprocessing children of its own, and ends without running atexit.
    assert verifier.score(boxed("z"), ["z"]) == [1.0]
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=_in_process, args=(verifier, theirs), daemon=True)
    process.start()
    assert ours.poll(600)
    scores, template, daemon = ours.recv()
    process.join(600)
    assert (scores, daemon, process.exitcode) == ([1.0, 0.0, 1.0], True, 0)
    assert template != template_pid(verifier)
    assert gone(template)


def test_pickle_carries_the_settings_and_no_process(verifier):
    assert verifier.score(boxed("a"), ["a"]) == [1.0]
    with pickle.loads(pickle.dumps(verifier)) as copy:
        assert (copy.workers, copy.timeout_s, copy.judge_path, copy._pool) == (2, 600, DEADLY, None)
        assert copy.score(boxed("b"), ["b"]) == [1.0]
        assert template_pid(copy) != template_pid(verifier)
    other = Verifier(3, 1.5, 300, 10, 11, True, DEADLY, 12)
    assert pickle.loads(pickle.dumps(other)).__reduce__() == other.__reduce__()


def test_close_and_the_garbage_collector_leave_no_process():
    verifier = Verifier(workers=2, timeout_s=600, judge_path=DEADLY)
    verifier.score(boxed("ab"), [*"ab"])
    pids = [template_pid(verifier), *children(template_pid(verifier))]
    verifier.close()
    verifier.close()
    assert [state(pid) for pid in pids] == [None] * len(pids)
    verifier.score(boxed("cd"), [*"cd"])
    pids = [template_pid(verifier), *children(template_pid(verifier))]
    del verifier
    gc.collect()
    assert eventually(lambda: not any(map(state, pids)))


SCRIPT = """
import os, sys, threading, time
from processes import DEADLY, children, eventually, template_pid
from sage_rlvr.verify import Verifier
v = Verifier(workers=2, timeout_s=600, judge_path=DEADLY)
v.score([r"\\boxed{a}"], ["a"])
if "hang" in sys.argv:
    threading.Thread(target=lambda: v.score([r"\\boxed{hang 1}", r"\\boxed{hang 2}"], ["a", "a"]), daemon=True).start()
    eventually(lambda: len(children(template_pid(v))) == 2)
    time.sleep(0.3)
if "fork" in sys.argv and not os.fork():
    time.sleep(600)
print(template_pid(v), *children(template_pid(v)), flush=True)
if "wait" in sys.argv:
    v.score([r"\\boxed{hang 3}"] , ["a"])
"""


def start(*words):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
        # a test run in the background (nohup, some CIs) hands down a SIGINT that is ignored; a terminal does not
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    return process, [int(pid) for pid in process.stdout.readline().split()]


@pytest.mark.parametrize("words", but_few(["wait", "hang wait", "fork wait", "fork hang wait"], fast=[0, 3]))
@pytest.mark.parametrize("sign", but_few([signal.SIGKILL, signal.SIGTERM], fast=[0]))
def test_workers_end_when_their_owner_is_killed(words, sign):
    process, pids = start(*words.split())
    try:
        assert len(pids) >= 2
        process.send_signal(sign)
        process.wait(300)
        assert gone(*pids)
    finally:
        os.killpg(process.pid, signal.SIGKILL) if "fork" in words else None  # the script's own child
        process.communicate()


def test_ctrl_c():
    process, pids = start("hang", "wait")
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    try:
        _, errors = process.communicate(timeout=30)
        assert errors.count("Traceback") == 1
    except subprocess.TimeoutExpired:  # Python drops an interrupt that hits a finalizer: a person presses again
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=1200)
    assert "KeyboardInterrupt" in errors
    assert gone(*pids)


def test_exit_without_close():
    process, pids = start()
    _, errors = process.communicate(timeout=1200)
    assert (process.returncode, errors) == (0, "")
    assert gone(*pids)
