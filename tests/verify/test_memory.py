"""What a verifier remembers of a pair, and what it asks a worker for again."""

import deadly_judge
import pytest
from processes import DEADLY

from sage_rlvr.verify import Verifier

PLAIN = f"{deadly_judge.__name__}:PlainJudge"  # to whom a command is a word like any other
NO_LIMIT_S = 3600


def boxed(answers):
    return [rf"\boxed{{{answer}}}" for answer in answers]


@pytest.mark.parametrize(("command", "limit_s"), [("hang", 1), ("stop", 1), ("exit", 600), ("raise", 600)])
def test_what_may_have_been_the_machines_fault_is_judged_again(command, limit_s):
    """The same pair, before a judge under which it hangs or dies and then before one that finds it right. (Where the machine is
    so busy that the gold is not read within the limit, it is that which must not be remembered.)"""
    with Verifier(workers=1, timeout_s=limit_s, judge_path=DEADLY) as verifier:
        assert verifier.score(boxed([command]), [command]) != [1.0]
        verifier.close()
        verifier.judge_path, verifier.timeout_s = PLAIN, NO_LIMIT_S
        assert verifier.score(boxed([command]), [command]) == [1.0]


def test_what_would_be_the_same_next_time_is_remembered():
    answers, golds = ["a", "hang", "b"], ["a", "b", "unreadable"]
    with Verifier(workers=1, timeout_s=NO_LIMIT_S, judge_path=PLAIN) as verifier:
        first = verifier.judge(boxed(answers), golds)
        assert [v.reason for v in first] == ["right", "wrong", "unverifiable gold"]
        verifier.close()
        verifier.judge_path = DEADLY  # it would hang for an hour
        assert verifier.judge(boxed(answers), golds) == first
        assert verifier._pool is None, "nobody was asked"


def test_the_pair_used_longest_ago_is_forgotten():
    with Verifier(workers=1, timeout_s=NO_LIMIT_S, judge_path=PLAIN, cache_size=3) as verifier:
        for answer in "abcad":  # b is the one that was used longest ago
            assert verifier.score(boxed([answer]), [answer]) == [1.0]
        verifier.close()
        assert verifier.score(boxed("cad"), [*"cad"]) == [1.0] * 3
        assert verifier._pool is None, "all three are remembered"
        assert verifier.score(boxed("b"), ["b"]) == [1.0]
        assert verifier._pool is not None, "and it is not"
