"""Answers that attack the process that judges them. Each scores 0, leaves no trace, and the next honest answer is right."""

import logging
import os
import platform
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from processes import children, eventually, gone, template_pid

from sage_rlvr.verify import Verifier, pool, sandbox, seccomp
from sage_rlvr.verify.pool import DIED, GOLD_DIED, RETIRING, Template, Worker

JUDGE = "sandboxed_judge:SandboxedJudge"
GOLD, RIGHT = "sum([40, 2])", r"\boxed{42}"
SECRET = "SAGE_RLVR_TEST_SECRET"
linux = pytest.mark.skipif(seccomp.missing() is not None, reason=f"no seccomp here: {seccomp.missing()}")


@pytest.fixture(scope="module")
def verifier():
    os.environ[SECRET] = "hunter2"
    with Verifier(workers=1, timeout_s=60, judge_path=JUDGE, untrusted=True, memory_mb=512) as v:
        v.score([RIGHT], [GOLD])  # starts its processes
        yield v
    del os.environ[SECRET]


@pytest.fixture
def victim(tmp_path):
    """A file that must stay as it is, and a port that nobody may call."""
    file = tmp_path / "victim"
    file.write_text("untouched")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield file, server
        with pytest.raises(BlockingIOError):
            server.accept()
    assert file.read_text() == "untouched"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["victim"]


def judged(verifier, *answers, gold=GOLD):
    return [
        (v.score, v.reason)
        for v in verifier.judge([rf"<SOLUTION>{a}</SOLUTION>" for a in answers], [gold] * len(answers))
    ]


# Each gives the gold, or "right", if it runs. {file}, {port}: the victim.
PAYLOADS = {
    "arithmetic": "40 + 2",
    "reads a file": "42 if open({file!r}).read() else 0",
    "writes a file": "42 if open({file!r}, 'w').write('x') else 0",
    "removes a file": "__import__('os').remove({file!r}) or 42",
    "calls out": "42 if __import__('socket').create_connection(('127.0.0.1', {port})) else 0",
    "reads the environment": "42 if dict(__import__('os').environ) is not None else 0",
    "runs a command": "__import__('os').system('touch {file}.new') or 42",
    "a subprocess": "__import__('subprocess').run(['touch', {file!r} + '.new']) and 42",
    "answers on every descriptor": "[__import__('os').write(fd, b'\\x00\\x00\\x00\\x05right') for fd in range(3, 64)] and 42",
    "answers and leaves": "[__import__('os').write(3, b'\\x00\\x00\\x00\\x05right'), __import__('os')._exit(0)]",
    "leaves": "__import__('os')._exit(0)",
    "sys.exit": "__import__('sys').exit(0)",
    "replaces the judge": "setattr(__import__('sandboxed_judge').SandboxedJudge, 'is_right', lambda *a: True) or 42",
    "replaces a builtin": "__builtins__.__setitem__('eval', lambda text: 42) or 42",
    "finds the judge's frame": "__import__('sys')._getframe(1).f_locals['gold']",
    "sets the judge's counter": "[setattr(__import__('sys')._getframe(1).f_locals['self'], 'calls', 0), 42][1]",
    "opens the doors": "[o for o in __import__('gc').get_objects() if type(o).__name__ == 'Sandbox'] and 42",
    "forks": "[__import__('os').fork() for _ in range(20)] and 42",
    "fills the memory": "[bytearray(1 << 26) for _ in range(1 << 20)] and 42",
    "never ends": "[0 for _ in iter(int, 1)] or 42",
    "nests": "(" * 900 + "42" + ")" * 900,
    "recurses": "(lambda f: f(f))(lambda f: f(f))",
    "a class": "type('A', (), {{'__eq__': lambda *a: True}})()",
    "unpickles": "__import__('pickle').loads(b'cos\\nsystem\\n(S\"true\"\\ntR.')",
    "ctypes": "__import__('ctypes').CDLL(None).getpid() and 42",
    "kills its parent": "__import__('os').kill(__import__('os').getppid(), 9) or 42",
    "imports": "__import__('antigravity') and 42",
    "a thread": "__import__('threading').Thread(target=print).start() or 42",
    "exec": "exec('raise SystemExit') or 42",
    "a nul": "42\\x00",
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_an_answer_never_becomes_code(verifier, victim, name):
    file, server = victim
    payload = PAYLOADS[name].format(file=str(file), port=server.getsockname()[1])
    template = template_pid(verifier)
    attack, honest, wrong = judged(verifier, payload, f"calls 2 {name}", f"calls 9 {name}")
    assert attack in [(0.0, "judge raised"), (0.0, "wrong")]
    assert (honest, wrong) == ((1.0, "right"), (0.0, "wrong"))  # by the same worker, unharmed
    assert template_pid(verifier) == template
    assert eventually(lambda: not children(template))


def test_what_the_gold_itself_ran_may_run_again(verifier):
    """Known by its bytecode: the gold's own text is let in, no other is, and a judge that swallows the refusal is overruled."""
    assert judged(verifier, "sum([40, 2])") == [(1.0, "right")]
    assert judged(verifier, "sum([2, 40])") == [(0.0, "judge raised")]
    assert judged(verifier, "42") == [(0.0, "judge raised")]  # eval again; its except says right
    assert judged(verifier, "golds 1") == [(1.0, "right")]  # no eval: a plain verdict


@linux
@pytest.mark.parametrize("order", ["read {file}", "connect {port}", "fork", "spawn", "kill"])
def test_the_interpreter_refuses_what_reaches_out(verifier, victim, order):
    file, server = victim
    assert judged(verifier, order.format(file=file, port=server.getsockname()[1])) == [(0.0, "judge raised")]


@linux
@pytest.mark.parametrize("order", ["c-read {file}", "c-socket", "c-fork", "c-kill", "c-exec"])
def test_the_kernel_refuses_what_goes_past_the_interpreter(verifier, victim, order):
    template = template_pid(verifier)
    assert judged(verifier, order.format(file=victim[0])) == [(0.0, "wrong")]
    assert template_pid(verifier) == template


def test_orders_are_carried_out_where_the_judge_is_trusted(victim):
    """The attacks are real: without the sandbox they succeed."""
    with Verifier(workers=1, timeout_s=60, judge_path=JUDGE) as trusting:
        file, _ = victim
        assert judged(trusting, f"read {file}", f"c-read {file}", "c-socket", "spawn", "40 + 2") == [(1.0, "right")] * 5


def test_the_environment_is_not_there(verifier):
    assert judged(verifier, f"environment {SECRET}") == [(0.0, "wrong")]
    if sys.platform == "linux":
        assert b"hunter2" not in Path(f"/proc/{template_pid(verifier)}/environ").read_bytes()


@pytest.mark.parametrize("order", ["exit", "gone", "recurse", "grow"])
def test_an_end_costs_one_answer(verifier, order):
    (attack, honest) = judged(verifier, order, f"golds 1 {order}")
    assert attack[0] == 0.0
    assert honest == (1.0, "right")


def test_a_loop_costs_one_answer():
    with Verifier(workers=1, timeout_s=1.0, judge_path=JUDGE, untrusted=True) as v:
        assert judged(v, "hang")[0] == (0.0, "timeout")
    with Verifier(workers=1, timeout_s=60, judge_path=JUDGE, untrusted=True) as v:
        assert judged(v, "golds 1") == [(1.0, "right")]


def test_each_golds_batch_has_a_process_of_its_own(verifier):
    golds = ["1", "2", "3", "1", "2", "3"]
    orders = [f"golds 1 {i}" for i in range(6)]
    assert verifier.score([rf"\boxed{{{o}}}" for o in orders], golds) == [1.0] * 6
    # All answers of a gold in one call meet one worker, in order; the next call's meet a new one.
    assert judged(verifier, *(f"calls {i} first" for i in range(1, 13))) == [(1.0, "right")] * 12
    assert judged(verifier, *(f"calls {i} second" for i in range(1, 13))) == [(1.0, "right")] * 12
    assert eventually(lambda: not children(template_pid(verifier)))  # none waits for its next answer


# ---- the pool's ear ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "hears"),
    [
        ([b"gold read", b"right"], b"right"),
        ([b"gold read", b"right" + RETIRING], b"right" + RETIRING),
        ([b"no gold"], b"no gold"),
        ([b"gold read", b"gold read", b"right"], DIED),  # each would set the clock anew
        ([b"gold read", b"RIGHT"], DIED),
        ([b"gold read", b"timeout"], DIED),  # the pool's own words
        ([b""], GOLD_DIED),
        ([b"right" * 1000], GOLD_DIED),
        ([], GOLD_DIED),
    ],
)
def test_what_is_no_outcome_is_a_death(says, hears):
    ours, theirs = socket.socketpair()
    worker, far = Worker.__new__(Worker), Connection(theirs.detach())
    worker.conn = Connection(ours.detach())

    def reply():
        far.recv_bytes()
        for message in says:
            far.send_bytes(message)
        far.close()

    thread = threading.Thread(target=reply)
    thread.start()
    assert worker.judge("gold", "answer", 60) == hears
    thread.join()


def test_a_verdict_given_before_the_question_is_not_taken():
    ours, theirs = socket.socketpair()
    worker, far = Worker.__new__(Worker), Connection(theirs.detach())
    worker.conn = Connection(ours.detach())
    far.send_bytes(b"right")
    assert worker.judge("gold", "answer", 60) == GOLD_DIED  # tried again with a fresh worker


# ---- where the kernel does not help --------------------------------------------------------------------------------


def test_said_once_where_there_is_no_seccomp(monkeypatch, caplog):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert "riscv64" in sandbox.lacks()
    with pytest.raises(OSError, match="riscv64"):
        seccomp.install()
    pool.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            template = Template(JUDGE, 512, True)
            monkeypatch.setattr(pool.socket.socket, "recv", lambda *_: b"upno seccomp on riscv64")
            template._start()
            monkeypatch.undo()
            template.close()
    assert [r.message.count("without the kernel's sandbox (no seccomp on riscv64)") for r in caplog.records] == [1]


@linux
def test_a_kernel_that_refuses_is_told_from_one_that_helps(monkeypatch):
    assert sandbox.lacks() is None
    monkeypatch.setattr(seccomp, "install", lambda: None)  # says yes and does nothing
    assert "does not allow" in sandbox.lacks()


def test_without_seccomp_limits_and_interpreter_still_refuse():
    """In a process of its own, with the kernel's part taken out."""
    code = """
import ctypes, os, socket
from sage_rlvr.verify import sandbox, seccomp
def none(): raise OSError("none here")
seccomp.install = none
c_open, c_socket = ctypes.CDLL(None).open, ctypes.CDLL(None).socket
a, b = socket.socketpair()
box = sandbox.Sandbox()
box.close(b.fileno())
tried = [c_open(b"/dev/null", 0), c_socket(2, 1, 0)]
for attempt in (lambda: open("/dev/null"), lambda: eval("1"), lambda: socket.socket(), lambda: os.listdir("/")):
    try: attempt(); tried.append(0)
    except PermissionError: tried.append(-1)
os.write(1, repr(tried).encode())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == repr([-1] * 6)


def test_no_process_is_left(verifier):
    template = template_pid(verifier)
    verifier.close()
    assert gone(template)
