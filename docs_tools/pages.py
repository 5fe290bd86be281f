"""The playground as a page of the site, made when the site is built (`sage-rlvr lab` writes the same page)."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from sage_rlvr.lab.playground import playground


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "playground.html", content=playground()))
    return files
