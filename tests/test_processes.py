"""Living, dead and undead processes, real ones."""

import os
import subprocess
import sys

import psutil
import pytest

from sage_rlvr.processes import alive


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a zombie is not told from the living")
def test_a_process_that_has_ended_is_dead_though_nobody_has_waited_for_it():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert alive(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        os.kill(child.pid, 0)  # its number is still taken
        assert not alive(child.pid)
    assert not alive(child.pid)


NAMED = r"""
open("/proc/self/comm", "wb").write(b"a) Z \xff")
print(flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_a_living_process_is_alive_whatever_its_name():
    with subprocess.Popen([sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert psutil.Process(child.pid).name().startswith("a) Z ")
        assert alive(child.pid)
        child.communicate(b"\n", timeout=1200)
