"""Every command of README.md and docs/*.md is run, or marked with what it needs or who runs it; all of them are parsed."""

import re

import pytest

from sage_rlvr import cli
from tests.docs.fences import NEEDS, PAGES, ROOT, fences, label, read, spans
from tests.docs.parsing import check, verb_words
from tests.docs.stand_ins import write_runs

SHELL = {"bash", "sh", "shell", "console"}
BASH = [f for f in fences() if f.language in SHELL]
RUN_HERE = {"doctor", "plan", "tasks", "recipes", "results", "compare", "analyze", "tables", "report", "study list"}
VERDICTS = {"doctor", "plan"}  # 1 says that this machine will not do: an answer, not a failure of the command


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with stand-ins for finished runs."""
    folder = tmp_path_factory.mktemp("desk")
    write_runs(folder)
    (folder / "recipes").symlink_to(ROOT / "src" / "sage_rlvr" / "recipes")
    return folder


def run(words, monkeypatch, capsys):
    """One command of an unmarked block, in this process."""
    if words[0] == "export":
        for name, _, value in (w.partition("=") for w in words[1:]):
            monkeypatch.setenv(name, value)
        return
    argv = verb_words(words)
    try:
        code = cli.main(argv)
    except SystemExit as e:
        code = e.code or 0
    out = capsys.readouterr()
    assert code == 0 or (code == 1 and argv[0] in VERDICTS), f"exit code {code}: {out.out[-500:]}{out.err[-1500:]}"


def free():
    """The unmarked blocks. Whether a recipe fits here takes its model's passes: slow; faster ones are in tests/doctor/."""
    for fence in filter(lambda fence: fence.free, BASH):
        plans = any({"doctor", "--config"} <= set(words) for words in fence.commands())
        yield pytest.param(fence, marks=[pytest.mark.slow] * plans, id=str(fence))


@pytest.mark.parametrize("fence", free())
def test_unmarked_commands_run(fence, desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("webbrowser.open", lambda *a, **k: True)
    for words in fence.commands():
        argv = verb_words(words) or words
        known = words[0] == "export" or {argv[0], " ".join(argv[:2])} & RUN_HERE
        assert known, f"{' '.join(words)}: not run by this test, so mark its block with what it needs or who runs it"
    for words in fence.commands():
        run(words, monkeypatch, capsys)


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_commands_name_what_exists(page, monkeypatch):
    """Verbs, flags, recipes, tasks, studies: in blocks, marked or not, and inside sentences."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    wrong = []
    blocks = [
        (f.line, words) for f in read(page.read_text(), page.name) if f.language in SHELL for words in f.commands()
    ]
    inside = [(line, text.split()) for line, text in spans(page)]
    for line, words in [*blocks, *inside]:
        argv = verb_words([w for w in words if w not in ("…", "...")])
        try:
            if argv is not None:
                check(argv, whole=(line, words) not in inside)
            else:
                check_other(words)
        except AssertionError as e:
            wrong.append(f"{page.name}:{line}: {e}")
    assert not wrong, "\n".join(wrong)


def check_other(words):
    """Programs that are not ours: the files, targets and extras that they name are ours all the same."""
    text = " ".join(words)
    for extras in re.findall(r"(?:sage-rlvr|\.)\[([\w,]+)\]", text):
        known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
        assert set(extras.split(",")) <= set(known), f"pyproject.toml has no extra among {extras}"
    if words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(words[1:]) <= set(targets), f"the Makefile has no target {' '.join(words[1:])}"
    for path in re.findall(r"\b(?:examples|benchmarks|tests|tests_verl|tests_vllm)/[\w./-]+", text):
        assert (ROOT / path).exists(), f"there is no {path}"


@pytest.mark.parametrize("verb", cli.VERBS)
def test_the_example_of_each_verb_names_what_exists(verb):
    words = verb_words(cli.VERBS[verb].example.split())
    assert words[0] == verb
    check(words)


def test_marks_are_of_the_fixed_kinds():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    for fence in fences():
        assert set(fence.needs) <= NEEDS, (
            f"{fence}: needs {', '.join(set(fence.needs) - NEEDS)}: not one of {sorted(NEEDS)}"
        )
        for by in fence.run_by:
            known = by in {f"make {t}" for t in targets} or (by.startswith("tests") and (ROOT / by).is_file())
            assert known, f"{fence}: run by {by!r}: neither a test file nor a make target"
    for page in PAGES:  # a mark that stands before nothing, or is misspelt, marks nothing
        lines = page.read_text().splitlines()
        for i, line in enumerate(lines):
            if re.match(r"\s*<!--\s*(needs|need|run|runs)\b", line):
                following = "".join(lines[i + 1 : i + 2]).lstrip()
                assert following.startswith("```"), f"{page.name}:{i + 1}: no block follows"
                kind = re.fullmatch(r"\s*<!-- (needs|run by): .+ -->", line)
                assert kind, f"{page.name}:{i + 1}: write <!-- needs: … --> or <!-- run by: … -->"


def test_every_page_is_read():
    """The collector sees what is there: each ``` in a page belongs to a block that it found."""
    assert len(BASH) > 10
    for page in PAGES:
        text = page.read_text()
        assert 2 * len(read(text, page.name)) == len(re.findall(r"^\s*```", text, re.M)), page.name


# ---- the checker itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sage-rlvr dance", "dance"),
        ("sage-rlvr lab --colour red", "--colour"),
        ("sage-rlvr train --config recipes/brunch.yaml", "brunch"),
        ("sage-rlvr train --config recipes/branch.yaml --learning_rat 1e-6", "learning_rat"),
        ("sage-rlvr train --config branch --accelerate_config fsdp9", "fsdp9"),
        ("sage-rlvr eval --model m --tasks aime,amc32 --out o", "amc32"),
        ("sage-rlvr eval --model m --tasks aime --temprature 1 --out o", "temprature"),
        ("sage-rlvr plan --config recipes/branch.yaml --gpuu h200", "gpuu"),
        ("sage-rlvr study run table77", "table77"),
        ("sage-rlvr tables table77", "table77"),
        ("sage-rlvr tasks show countdown-rtl", "countdown-rtl"),
        ("A=1 sage-rlvr recipes brunch | head", "brunch"),
    ],
)
def test_a_wrong_name_is_found(command, said):
    with pytest.raises(AssertionError, match=said):
        check(verb_words(command.split()))


def test_a_block_is_read_as_it_stands():
    text = "a\n<!-- needs: GPU, the Hub -->\n```bash\nA=1 sage-rlvr train \\\n  --x '1 2' # why\n\n# no\n```\n```python\n1\n```\n"
    bash, python = read(text, "p.md")
    assert (bash.needs, bash.commands(), bash.line) == (
        ("GPU", "the Hub"),
        [["A=1", "sage-rlvr", "train", "--x", "1 2"]],
        3,
    )
    assert (python.language, python.text, python.free) == ("python", "1", True)
