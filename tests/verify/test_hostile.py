"""Completions made to hang, crash, bloat or fool the verifier. Each gets a verdict, and the next normal one is right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import children, environment, eventually, state, template_pid

from sage_rlvr.verify import Verifier
from tests.slow import but_few


def hostile_answers():
    """200 and more, of all kinds; none of them is 5."""
    for n in range(3, 7):
        yield "9^{" * n + "9" + "}" * n  # towers of powers
        yield "9**" * n + "9"
        yield "(" * n + "9^9" + ")^9" * n
    for n in range(1, 8, 2):
        yield "10" + "0" * n + "!"
        yield "(" * n + "50!" + ")!" * n
        yield "9" * n + "!" * n
        yield rf"\binom{{1{'0' * n}}}{{5{'0' * (n - 1)}}}"
    yield r"\binom{10000000}{5000000}"
    for n in (1000, 1900, 10_000, 100_000, 1_000_000):
        yield "7" * n
        yield "0." + "3" * n
        yield "1" + "+1" * (n // 2)
        yield "1" + "^1" * (n // 2)
        yield "-" * n + "1"
    for n in (100, 400, 900, 10_000):
        yield "{" * n + "4" + "}" * n
        yield "(" * n + "4" + ")" * n
        yield r"\frac{1}{" * (n // 5) + "4" + "}" * (n // 5)
        yield r"\sqrt{" * (n // 4) + "4" + "}" * (n // 4)
        yield r"\left(" * (n // 4) + "4" + r"\right)" * (n // 4)
        yield "{" * n
        yield "|" * n
    for n in (10, 25, 60, 300):
        yield r"\begin{pmatrix}" + r"\\".join(["&".join(["7"] * n)] * n) + r"\end{pmatrix}"
        yield r"\begin{pmatrix}" + r"\\".join(["&".join(["x"] * n)] * n) + r"\end{pmatrix}^{50}"
        yield r"\{" + ",".join(map(str, range(n * 20))) + r"\}"
        yield r"\cup".join(f"({i},{i + 1})" for i in range(n * 2))
        yield "(" + ",".join(["x"] * n * 5) + ")"
    for character in "\x00\x01\x1b\x7f\ud800\udfff\u0301\u202e\u2028\ufeff\uffff𝟒４٤½∞√π°′":
        yield character * 3
        yield "4" + character * 1500
        yield rf"\frac{{{character}}}{{4}}"
    yield from (
        r"\sum_{i=1}^{10^9} i!",
        r"\prod_{i=1}^{10^8} i^i",
        r"\int_0^1 \sin(\tan(e^{x^x})) dx",
        r"\lim_{x\to 0} x^{x^{x^{x}}}",
    )
    yield from (
        r"\int \int \int e^{x^2 y^2 z^2} dx dy dz",
        r"\sin(\cos(\tan(\log(" * 12 + "x" + "))))" * 12,
        r"x^{x^{x^{x^{x}}}} = 4",
    )
    yield from (
        r"\newcommand{\a}{\b\b}\newcommand{\b}{\a\a}\a",
        r"\def\x{\x\x}\x",
        r"\input{/etc/passwd}",
        r"\include{x}" * 50,
    )
    yield from (
        r"\loop\iftrue\repeat",
        r"\csname" * 200,
        r"\expandafter" * 150,
        r"\write18{touch pwned}",
        r"\catcode`\{=12 {",
    )
    code = "__import__('os').system('touch pwned')"
    yield from (
        code,
        f"eval({code!r})",
        f"1+{code}",
        rf"\text{{{code}}}",
        "lambda: 4",
        "exit()",
        "os._exit(0)",
        "while True: pass",
    )
    yield from (
        f"{code}*(1)",
        "(4).__class__.__mro__",
        "open('pwned','w')",
        "exec('4')",
        "`touch pwned`",
        "$(touch pwned)",
        "; kill -9 1",
    )
    yield from (
        "{{4}}",
        "%s%s%n",
        "<script>4</script>",
        "'; DROP TABLE golds; --",
        '{"score": 1.0}',
        "b'right'",
        "right",
        "None",
        "nan",
        "inf",
    )
    for n in range(0, 20, 4):
        yield f"(x+y+z+{n})^{{{10 ** (n // 3 + 1)}}}"
        yield rf"\sqrt[{10**n}]{{{10 ** (n + 1)}!}}"
    yield from (
        "word " * 200,
        "4," * 900,
        "4 or " * 350,
        "=" * 1900,
        "x=" * 900 + "4",
        "<" * 1900,
        r"\\" * 900,
        "$" * 1900,
        "^" * 900,
        "_" * 900,
    )


def completions():
    for answer in dict.fromkeys(hostile_answers()):
        yield rf"\boxed{{{answer}}}"
    yield from (
        "a" * 10_000_000,
        r"\boxed{4}" * 1_000_000,
        "<SOLUTION>" * 1_000_000,
        "\x00" * 10_000_000,
        r"\boxed{" * 900_000,
    )


@pytest.mark.parametrize(("max_answer_chars", "every"), but_few([(2_000, 24), (2_000, 1), (2_000_000, 1)], fast=[0]))
def test_hostile_completions(max_answer_chars, every, tmp_path, monkeypatch):
    """With the usual limit on an answer's length, and with hardly any, so that the workers get the worst of it."""
    monkeypatch.chdir(tmp_path)
    hostile = list(completions())[::every]
    if max_answer_chars > 2_000:
        hostile = [text for text in hostile if 2_000 < len(text) < 2_000_000]
    assert len(hostile) >= (200 // every if max_answer_chars == 2_000 else 30)
    limits = {"max_chars": 20_000_000, "max_answer_chars": max_answer_chars, "memory_mb": 512}
    with Verifier(workers=2, timeout_s=0.75, **limits) as verifier:
        texts = [text for n, bad in enumerate(hostile) for text in (bad, rf"\boxed{{\frac{{{2 * n}}}{{2}}}}")]
        verdicts = patiently(verifier, texts, [gold for n in range(len(hostile)) for gold in ("5", f"{n}.0")])
        bad, good = verdicts[::2], verdicts[1::2]
        assert [v for v in bad if v.score != 0.0] == []
        assert {v.score for v in good} == {1.0}
        assert {"wrong", "timeout", "too long"} <= {v.reason for v in bad} or max_answer_chars > 2_000
        assert sum(v.reason == "timeout" for v in bad) >= 5 / every
        for answer in (v.answer for v in bad if v.answer):
            answer.encode()  # can be stored
        as_new = patiently(verifier, [r"\boxed{y}", r"\boxed{\frac{2x^2}{x}}"], ["2x", "2x"])
        assert [v.score for v in as_new] == [0.0, 1.0]
        template = template_pid(verifier)
        assert eventually(lambda: len(children(template)) <= 2)
        for worker in children(template):
            assert peak_mb(worker) <= 512
    assert state(template) is None
    assert list(tmp_path.iterdir()) == []  # nothing that looked like code ran


def patiently(verifier, texts, golds):
    """Of texts that are hostile and harmless in turn: what a busy machine had no time for, a gold or a harmless one, is asked
    for again."""
    verdicts = verifier.judge(texts, golds)
    for _ in range(30):
        unsure = [i for i, v in enumerate(verdicts) if "gold" in v.reason or (i % 2 and v.reason == "timeout")]
        again = verifier.judge([texts[i] for i in unsure], [golds[i] for i in unsure])
        for i, verdict in zip(unsure, again):
            verdicts[i] = verdict
    return verdicts


def peak_mb(pid):
    return next(
        int(line.split()[1]) >> 10 for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmPeak" in line
    )


def test_a_gold_that_cannot_be_read_is_unverifiable_not_wrong():
    golds = ["", "  ", None, "7" * 3000, ".", r"\begin{pmatrix}1\end{pmatrix}"]
    with Verifier(workers=1, timeout_s=600) as verifier:
        verdicts = verifier.judge([r"\boxed{5}"] * len(golds), golds)
        assert verifier.judge(["no answer either"], [""])[0].score is None
    assert [v.score for v in verdicts] == [None] * 5 + [0.0]
    assert [v.reason for v in verdicts[:5]] == ["empty gold"] * 3 + ["gold too long", "unverifiable gold"]


def test_nothing_is_printed_or_left_behind(tmp_path):
    script = r"""
from sage_rlvr.verify import Verifier
v = Verifier(workers=2, timeout_s=0.5)
texts = [r"\boxed{x^{x}}", r"\boxed{9^{9^{9^9}}}", "<SOLUTION>\\frac{1}{", r"\boxed{\text{a}}"]
for _ in range(300):  # a busy machine may not read a gold, or a harmless answer, in half a second
    verdicts = v.judge(texts, ["x", "5", "6", r"\text{a}"])
    if not any("gold" in x.reason for x in verdicts) and verdicts[-1].reason != "timeout":
        break
print([x.score for x in verdicts])
print(v._pool._template._process.pid)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=1200,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.stderr == ""
    scores, pid = done.stdout.splitlines()
    assert scores == "[0.0, 0.0, 0.0, 1.0]"
    assert state(int(pid)) is None
    assert os.listdir(tmp_path) == []
