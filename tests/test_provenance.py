"""Where and with what: the release without an install, the commit of a checkout, of a copy, and of neither."""

import shutil
import subprocess
import sys
from pathlib import Path

import sage_rlvr
from sage_rlvr.provenance import made_with

SOURCE = Path(sage_rlvr.__file__).parent


def told_in(place, **env):
    """release and commit, as a copy of the package in ``place`` says them, which nothing installed."""
    code = "from sage_rlvr.provenance import made_with as m; print(m()['release'], m()['commit'])"
    own = {"PATH": "/usr/bin:/bin:/usr/local/bin", "PYTHONPATH": str(place), **env}
    return subprocess.run(
        [sys.executable, "-c", code], env=own, cwd=place, capture_output=True, text=True, check=True
    ).stdout


def test_a_copy_without_history_is_told_its_commit(tmp_path):
    (tmp_path / "sage_rlvr").mkdir()
    for name in ("__init__.py", "provenance.py"):
        shutil.copy(SOURCE / name, tmp_path / "sage_rlvr" / name)
    assert told_in(tmp_path) == f"{sage_rlvr.__version__} None\n"
    assert told_in(tmp_path, SAGE_RLVR_COMMIT="abc1234") == f"{sage_rlvr.__version__} abc1234\n"
    if shutil.which("git"):
        git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "one"], check=True)
        short = subprocess.run(
            [*git, "log", "-1", "--format=%h"], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert told_in(tmp_path) == f"{sage_rlvr.__version__} {short}\n"


def test_libraries_and_machine_have_no_host_name():
    import platform

    told = made_with()
    assert {"torch", "trl"} <= set(told["libraries"])
    assert platform.node() not in told["machine"].split()
