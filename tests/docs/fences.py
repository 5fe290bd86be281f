"""What the documentation tells a reader to type: the fenced blocks of README.md and docs/, with the mark before each.

A block that a test cannot run here says so in a comment on the line before it:

    <!-- needs: GPU, the Hub -->          what a machine must have for it (NEEDS)
    <!-- run by: tests/lab/test_lab.py -->    who runs it instead: test files, or make targets

Anything else is run by test_commands.py and test_python.py.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MADE = {"results", "protocols"}  # folders of pages that are made by a command, or hold what was promised before a study
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name not in MADE)]
NEEDS = {
    "GPU",
    "several GPUs",
    "the Hub",
    "a model",
    "a finished run",
    "the package index",
    "vLLM",
    "verl",
    "a browser",
    "your own files",  # files, models and data of the reader's
    "the code around it",  # a fragment of a script
}
_MARK = re.compile(r"<!--\s*(needs|run by):\s*(.+?)\s*-->")


@dataclass(frozen=True)
class Fence:
    page: str
    line: int  # of the opening fence
    language: str
    text: str
    needs: tuple[str, ...] = ()
    run_by: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """Nothing speaks against running it here."""
        return not (self.needs or self.run_by)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[list[str]]:
        """The words of each command; continued lines joined, comments gone."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def fences(pages: list[Path] | None = None) -> list[Fence]:
    return [fence for page in pages or PAGES for fence in read(page.read_text(encoding="utf-8"), label(page))]


def label(page: Path) -> str:
    """A page as it is named in messages: quickstart.md, howto/vllm.md."""
    return page.name if page.parent in (ROOT, ROOT / "docs") else f"{page.parent.name}/{page.name}"


def read(text: str, page: str) -> list[Fence]:
    found, lines, i = [], text.splitlines(), 0
    while i < len(lines):
        opened = re.fullmatch(r"(\s*)(`{3,}|~{3,})\s*(\w*).*", lines[i])
        if not opened:
            i += 1
            continue
        end = next((j for j in range(i + 1, len(lines)) if lines[j].strip() == opened[2]), None)
        assert end is not None, f"{page}:{i + 1}: the block is never closed"
        kind, said = mark.groups() if i and (mark := _MARK.fullmatch(lines[i - 1].strip())) else ("", "")
        parts = tuple(part.strip() for part in said.split(","))
        found.append(
            Fence(
                page,
                i + 1,
                opened[3],
                "\n".join(line.removeprefix(opened[1]) for line in lines[i + 1 : end]),
                parts if kind == "needs" else (),
                parts if kind == "run by" else (),
            )
        )
        i = end + 1
    return found


def spans(page: Path) -> list[tuple[int, str]]:
    """(line, text) of the `sage-rlvr …` written inside sentences and tables."""
    text = page.read_text(encoding="utf-8")
    for fence in read(text, page.name):
        text = text.replace(fence.text, re.sub(r"[^\n]", "", fence.text)) if fence.text else text
    found = re.finditer(r"(?<!`)`(sage-rlvr [^`]+)`(?!`)", text)
    return [(text.count("\n", 0, m.start()) + 1, m[1].replace("\\|", "|")) for m in found]
