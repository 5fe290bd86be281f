"""One writer a folder: real processes that race, die and leave their lock behind."""

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sage_rlvr import UserError, lock, processes

# Says "ready", waits for a line, tries, says what became of it, and stays until the next line
WRITER = """
import sys
from pathlib import Path
from sage_rlvr import UserError, lock
print("ready", flush=True)
for line in sys.stdin:
    try:
        lock.acquire(Path(sys.argv[1]))
    except UserError as e:
        print("refused", e, flush=True)
    else:
        print("in", flush=True)
    if sys.stdin.readline() == "let go\\n":
        lock.release(Path(sys.argv[1]))
    print("free", flush=True)
"""


class Writer:
    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.heard() == "ready"

    def say(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def heard(self):
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "writer.lock"


@pytest.fixture
def writers(path):
    made = [Writer(path) for _ in range(4)]
    yield made
    for writer in made:
        writer.kill()


def test_of_those_that_start_at_the_same_instant_exactly_one_wins(writers, path):
    """Sixty rounds on one folder; in every other one the winner stays dead or lets go."""
    for turn in range(60):
        for writer in writers:
            writer.say("go")
        said = [writer.heard() for writer in writers]
        assert [s.split()[0] for s in said].count("in") == 1, said
        assert all(s == "in" or str(path.parent) in s for s in said)
        winner = next(w for w, s in zip(writers, said) if s == "in")
        for writer in writers:
            if writer is not winner:
                writer.say("as you were")
                assert writer.heard() == "free"
        if turn % 20 == 19:
            winner.kill()
            writers[writers.index(winner)] = Writer(path)
        else:
            winner.say("let go")
            assert winner.heard() == "free"
            assert not path.exists()


def test_a_killed_owners_lock_is_taken_over_and_that_is_said(writers, path, caplog):
    owner = writers[0]
    owner.say("go")
    assert owner.heard() == "in"
    with pytest.raises(
        UserError, match=rf"being written by process {owner.process.pid} on .*; wait for it or stop it\.$"
    ):
        lock.acquire(path)
    owner.kill()
    with caplog.at_level(logging.WARNING), lock.held(path):
        assert f"the lock of process {owner.process.pid}, which is gone, is taken over" in caplog.text
        writers[1].say("go")
        assert f"by process {os.getpid()} on" in writers[1].heard()
        assert json.loads(path.read_text()) == processes.identity()
    assert not path.exists()


def test_a_child_neither_inherits_the_lock_nor_lets_go_of_it(path):
    """As the workers of a sampling engine, which may outlive a killed parent."""
    with lock.held(path):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                lock.release(path)
                try:
                    lock.acquire(path)
                except UserError:
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert path.exists()


ORPHANS = """
import os, sys, time
from pathlib import Path
from sage_rlvr import lock
lock.acquire(Path(sys.argv[1]))
if os.fork() == 0:
    time.sleep(1200)
print("in", flush=True)
time.sleep(1200)
"""


def test_a_child_that_outlives_its_killed_parent_holds_nothing(path):
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANS, str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert parent.stdout.readline() == "in\n"
        parent.kill()
        parent.wait()
        with lock.held(path):
            pass
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def left_behind(path, **changes):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(processes.identity(os.getppid()) | changes))


def test_a_number_that_another_process_has_now_holds_nothing(path):
    """By its start, and by the machine's."""
    for other in ({"start": 1}, {"boot": "another"}):
        left_behind(path, **other)
        with lock.held(path):
            pass


def test_the_name_alone_holds_where_the_kernels_lock_does_not_reach(path):
    left_behind(path)
    with pytest.raises(UserError, match=f"by process {os.getppid()} on {socket.gethostname()}; wait"):
        lock.acquire(path)


def test_another_machine_is_believed_and_the_way_out_is_said(path):
    left_behind(path, host="elsewhere")
    with pytest.raises(
        UserError, match=r"on elsewhere; .* if that machine is gone, delete writer\.lock in that folder"
    ):
        lock.acquire(path)
    path.unlink()
    with lock.held(path):
        pass


@pytest.mark.parametrize("text", ["", "null", "{", '{"pid": "12", "host": "x"}', '{"pid": 1}', "[" * 3000, "[1]"])
def test_a_name_that_makes_no_sense_holds_nothing(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with lock.held(path):
        pass


def test_one_process_takes_it_once_unless_it_says_again(path, monkeypatch):
    with lock.held(path):
        with pytest.raises(UserError, match="which is this one"):
            lock.acquire(path)
        monkeypatch.chdir(path.parent.parent)
        from pathlib import Path

        assert lock.acquire(Path("run", path.name), again=True) is False, "one folder, however it is written"
        assert path.exists()
    assert not path.exists()


def test_of_two_threads_one_wins(path):
    def attempt(_):
        try:
            lock.acquire(path)
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            assert sum(pool.map(attempt, range(8))) == 1
            lock.release(path)


def test_a_file_removed_on_the_way_is_made_again(path, monkeypatch):
    """Its holder ends between our opening and our locking: what we locked has no name any more."""
    real, calls = fcntl.lockf, []

    def removed_first(file, how):
        if not calls:
            path.unlink()
        calls.append(how)
        return real(file, how)

    monkeypatch.setattr(lock.fcntl, "lockf", removed_first)
    with lock.held(path):
        assert json.loads(path.read_text()) == processes.identity()
    assert len(calls) == 2


def test_where_there_are_no_locks_it_is_said_and_the_name_counts(path, monkeypatch, caplog):
    def none(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "lockf", none)
    with lock.held(path):
        assert "this file system has no locks" in caplog.text
    left_behind(path)
    with pytest.raises(UserError, match="being written by"):
        lock.acquire(path)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        lock.acquire(tmp_path / "file" / "writer.lock")
