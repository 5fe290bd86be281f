import os
import subprocess
import sys

import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.models import whole_folder, write_whole

KILLED = """
import os, signal, sys
from sage_rlvr.models.folders import whole_folder
with whole_folder(sys.argv[1]) as partial:
    (partial / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_no_folder_and_the_next_one_clears_up(tmp_path):
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False, timeout=1200)
    assert done.returncode == -9
    assert not out.exists()
    assert len(list(tmp_path.iterdir())) == 1  # what it had written, under another name
    with whole_folder(out) as partial:
        assert not out.exists()
        (partial / "all").write_text("all")
    assert [p.name for p in tmp_path.rglob("*")] == ["out", "all"]


def test_a_living_writers_folder_is_left_alone(tmp_path):
    with whole_folder(tmp_path / "out") as mine:
        theirs = mine.with_name(mine.name.removesuffix(str(os.getpid())) + str(os.getppid()))
        theirs.mkdir()
        (mine / "a").touch()
    assert theirs.is_dir()
    with whole_folder(tmp_path / "out", force=True):
        pass
    assert theirs.is_dir()


def write(out, meanwhile):
    with whole_folder(out) as partial:
        (partial / "mine").touch()
        meanwhile()


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
    out = tmp_path / "out"

    def appear():
        out.mkdir()
        (out / "theirs").touch()

    with pytest.raises(UserError, match="could not be put in place"):
        write(out, appear)
    assert [p.name for p in tmp_path.rglob("*")] == ["out", "theirs"]


def test_an_error_removes_what_was_written(tmp_path):
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "out", lambda: 1 // 0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(UserError, match="is a file: name a folder"), whole_folder(tmp_path / "out"):
        pass
    with pytest.raises(UserError, match="cannot make the folder"), whole_folder(tmp_path / "out" / "in"):
        pass


def test_a_file_is_replaced_whole(tmp_path):
    write_whole(tmp_path / "a.json", "1")
    write_whole(tmp_path / "a.json", "2")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.json", "2")]
