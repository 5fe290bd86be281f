"""The server of forked processes has the imports of the tests' own process; one of its own would import anew, and say nothing."""

import os

from . import forked

COLLECTED_BY = os.getpid()


def say():
    print(COLLECTED_BY)


def test_the_server_is_a_fork_of_the_tests_own_process():
    done = forked.run(say)
    assert (done.returncode, done.stdout.strip()) == (0, str(os.getpid())), done.stderr
