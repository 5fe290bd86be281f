"""Pages of the site that are made or copied when it is built: the playground (`sage-rlvr lab` writes the same) and, of each study
that has one, the page of tokens beside its records."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from sage_rlvr.lab.playground import playground


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "playground.html", content=playground()))
    for page in Path(config.docs_dir).parent.glob("results/gpu/*/explorer.html"):
        name = f"results/{page.parent.name}-explorer.html"  # as the study's page links to it
        files.append(File.generated(config, name, abs_src_path=str(page)))
    return files
