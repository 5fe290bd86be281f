"""The site builds without a warning, every link and anchor inside it resolves, and viewing it fetches nothing."""

import logging
import re

import pytest

from tests.docs.fences import PAGES, ROOT

mkdocs = pytest.importorskip("mkdocs", reason="the docs extra is not installed: pip install -e '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("mkdocs").addHandler(handler)
    try:
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        build(config)
    except BaseException as e:
        raise AssertionError(f"mkdocs build --strict: {e}\n" + "\n".join(said)) from e
    finally:
        logging.getLogger("mkdocs").removeHandler(handler)
    assert not said, "\n".join(said)
    return folder


def test_every_page_is_in_the_site(site):
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs"):
            assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page.name


def test_the_playground_is_in_the_site(site):
    from sage_rlvr.lab.playground import playground

    assert (site / "playground.html").read_text(encoding="utf-8") == playground()


@pytest.mark.parametrize("page", (ROOT / "results" / "gpu").glob("*/explorer.html"), ids=lambda page: page.parent.name)
def test_the_page_of_tokens_is_in_the_site(site, page):
    name = f"{page.parent.name}-explorer.html"
    assert (site / "results" / name).read_bytes() == page.read_bytes()
    assert f'href="{name}"' in (site / "results" / f"{page.parent.name}.html").read_text(encoding="utf-8")


def test_links_and_anchors_resolve(site):
    """mkdocs checks Markdown links; this one reads what a browser will: every href and src, and the ids they point to."""
    pages = {p.relative_to(site).as_posix(): p.read_text(encoding="utf-8") for p in site.rglob("*.html")}
    ids = {name: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for name, text in pages.items()}
    broken = []
    for name, text in pages.items():
        if name == "404.html":  # its links are absolute by design
            continue
        for link in re.findall(r'\b(?:href|src)="([^"]*)"', text):
            if re.match(r"[a-z]+:|//", link):
                continue
            path, _, anchor = link.partition("#")
            target = (site / name).parent / path if path else site / name
            inside = target.resolve().relative_to(site.resolve()).as_posix()
            inside = "index.html" if inside == "." else inside
            if not (site / inside).exists() or (
                anchor and inside in ids and anchor not in ids[inside] | {"__skip", "__top"}
            ):
                broken.append(f"{name} → {link}")
    assert not broken, "\n".join(sorted(set(broken)))


def test_nothing_is_fetched_when_a_page_is_viewed(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loads = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)\"", text)
        loads += re.findall(r"<link\b(?![^>]*\brel=\"(?:canonical|prev|next|edit)\")[^>]*\bhref=\"([^\"]+)\"", text)
        assert not [x for x in loads if re.match(r"https?:|//", x)], page.name
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:|//)", sheet.read_text(encoding="utf-8")), sheet.name


def test_the_public_names_are_in_the_reference(site):
    import sage_rlvr

    text = (site / "reference" / "api.html").read_text(encoding="utf-8")
    missing = [n for n in sage_rlvr.__all__ if not re.search(rf'id="sage_rlvr\.[\w.]*\b{n}"', text)]
    assert not missing, f"docs/reference/api.md does not show {', '.join(missing)}"
