"""Libraries: what is installed, against what this package declares and against what it was tested with."""

from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sage_rlvr.doctor.machine import Check

# What the tests and the GPU benchmarks ran with: the first of each is CPU's, the last is the GPU's. A test holds these against
# constraints/*.txt; the ranges themselves come from the installed package's own metadata.
TESTED: dict[str, tuple[str, ...]] = {
    "torch": ("2.13.0", "2.11.0"),
    "trl": ("1.16.0",),
    "transformers": ("5.22.2", "5.17.0"),
    "peft": ("0.21.2", "0.21.0"),
    "accelerate": ("1.15.0",),
    "datasets": ("5.2.0",),
    "math-verify": ("0.9.0",),
    "vllm": ("0.25.0",),
}
OPTIONAL = {  # library → its extra, what it is for
    "vllm": ("vllm", "use_vllm and eval --backend vllm"),
    "bitsandbytes": ("gpu", "8-bit optimizers (optim: adamw_8bit)"),
    "verl": ("verl", "running on verl, which wants an environment of its own (docs/howto/verl.md)"),
    "gguf": ("gguf", "models in .gguf files"),
}


def library_checks() -> list[Check]:
    """One check per library, quick: only metadata is read, nothing is imported."""
    needed = [name for name in TESTED if name not in OPTIONAL]
    return [library_check(name) for name in [*needed, *OPTIONAL]]


def library_check(name: str) -> Check:
    wanted = declared(name)
    try:
        installed = version(name)
    except PackageNotFoundError:
        if name in OPTIONAL:
            extra, purpose = OPTIONAL[name]
            return Check(name, None, f"not installed; needed only for {purpose}", f"pip install 'sage-rlvr[{extra}]'.")
        return Check(name, False, "not installed", f"pip install '{name}{wanted}'.")
    if wanted and not wanted.contains(installed, prereleases=True):
        return Check(name, False, f"{installed}, outside {wanted}", f"pip install '{name}{wanted}'.")
    tested = TESTED.get(name, ())
    if tested and installed.split("+")[0] not in tested:
        return Check(name, True, f"{installed} (tested with {' and '.join(tested)})")
    return Check(name, True, installed)


def declared(name: str) -> SpecifierSet:
    """The range this package asks for, whichever extra it stands in; empty where it asks for none."""
    try:
        lines = requires("sage-rlvr") or []
    except PackageNotFoundError:  # run from a source tree that was never installed
        return SpecifierSet()
    asked = [Requirement(line) for line in lines]
    return next((r.specifier for r in asked if r.name.lower() == name and r.specifier), SpecifierSet())
