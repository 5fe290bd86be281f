"""A command of make's, with uv for what it installs: ``python3 .ci/with_uv.py make test-all``.

uv unpacks what several environments share once and links it into each: a quarter of pip's CPU time. uv does not read pip's
settings; here they are handed on, and where one is set that uv has not, pip installs."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "uv==0.13.8"
FOLDER = Path(__file__).parents[1] / ".uv"

# pip's setting: uv's variable, and what stands between several values there
SAME = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "cert": ("SSL_CERT_FILE", " "),
}
OF_NO_MATTER = {
    "disable-pip-version-check", "no-cache-dir", "cache-dir", "no-color", "no-input", "progress-bar", "quiet", "verbose",
    "retries", "root-user-action", "break-system-packages", "require-virtualenv", "no-compile", "no-warn-script-location",
}  # fmt: skip


def settings() -> dict[str, str]:
    """pip's for an installation; the environment's count more than the files'."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    of = {"global": {}, "install": {}, ":env:": {}}
    for line in said.stdout.splitlines():
        name, value = line.split("=", 1)
        section, key = name.rsplit(".", 1)
        of.get(section, {})[key] = ast.literal_eval(value)
    return of["global"] | of["install"] | of[":env:"]


def main() -> None:
    found = settings()
    foreign = sorted(found.keys() - SAME.keys() - OF_NO_MATTER)
    command = sys.argv[1:]
    if foreign:
        print(f"pip installs, as uv has nothing like pip's setting {', '.join(foreign)}", flush=True)
        os.execvp(command[0], [*command, "UV="])
    uv = shutil.which("uv") or str(FOLDER / "bin" / "uv")
    if not Path(uv).exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        subprocess.run([FOLDER / "bin" / "pip", "install", "-q", VERSION], check=True)
    for key, value in found.items():
        if key in SAME:
            name, between = SAME[key]
            os.environ.setdefault(name, between.join(value.split()))
    os.environ.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # every index is asked, as pip does
    os.environ.setdefault("UV_CACHE_DIR", str(FOLDER / "cache"))  # on the environments' own disk: files are linked
    os.execvp(command[0], [*command, f"UV={uv}"])


main()
