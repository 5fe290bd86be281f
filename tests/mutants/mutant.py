"""One change a careless engineer could make, and who notices."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE, SCRIPTS = Path("src/sage_rlvr"), Path("benchmarks")


@dataclass(frozen=True)
class Mutant:
    file: str  # below src/sage_rlvr, or benchmarks/…
    why: str  # what the change breaks
    old: str  # stands in the file exactly once
    new: str
    tests: tuple[str, ...]  # pytest ids: at least one of them must fail

    @property
    def path(self) -> Path:
        """Below the root."""
        return Path(self.file) if self.file.startswith(f"{SCRIPTS}/") else PACKAGE / self.file

    def made_in(self, place: Path) -> None:
        """The change, in a copy of package and scripts."""
        path = place / (self.path.relative_to("src") if self.path.is_relative_to("src") else self.path)
        path.write_text(changed(path.read_text(encoding="utf-8"), self), encoding="utf-8")


def changed(text: str, mutant: Mutant) -> str:
    found = text.count(mutant.old)
    if found != 1 or mutant.old == mutant.new:
        raise ValueError(
            f"{mutant.file} ({mutant.why}): the old text stands there {found} times, not once: {mutant.old!r}"
        )
    return text.replace(mutant.old, mutant.new)


def within(file: str, test_file: str, *changes: tuple[str, str, str, str]) -> list[Mutant]:
    """Changes (why, old, new, tests) to one file; tests lie in ``test_file`` unless they name their own."""
    return [
        Mutant(file, why, old, new, tuple(t if "::" in t else f"{test_file}::{t}" for t in names.split(", ")))
        for why, old, new, names in changes
    ]
