"""MkDocs hooks: pages that lie elsewhere in the repository, and the Markdown of every page beside it.

The pages link to each other and to the rest of the repository as files do, so that they can be read in a
checkout and on GitHub. On the site, a link to a page of `ELSEWHERE` leads to that page, and a link to any
other file becomes the file's name.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = Path(__file__).parent / "pages"
# Places on the site of pages, and of what they show, that lie beside what they describe.
ELSEWHERE = {
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "README.md": "first-steps.md",  # a README beside the index would be taken for it
    "SECURITY.md": "SECURITY.md",
    "deploy/README.md": "deploy/README.md",
    "tests/bench/README.md": "bench/README.md",
    "tests/bench/accuracy.svg": "bench/accuracy.svg",
    "tests/stacks/README.md": "stacks/README.md",
    "workers/autofit_workers/spec/conv_algorithms/README.md": "conv_algorithms/README.md",
}
_FENCED = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie elsewhere."""
    from mkdocs.structure.files import File

    for source, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Points a page's links to places on the site."""
    return for_site(markdown, page.file.src_uri)


def on_post_build(config: MkDocsConfig) -> None:
    """Puts the Markdown of each page beside it, and all of the site's own pages into one text."""
    site = Path(config.site_dir)
    pages = sorted(PAGES.glob("*.md"))
    for page in pages:
        shutil.copy(page, site / page.name)
    whole = "\n\n".join(page.read_text(encoding="utf-8") for page in pages)
    (site / "llms-full.txt").write_text(whole, encoding="utf-8")


def for_site(markdown: str, place: str) -> str:
    """Markdown of the page at a place of the site, with each link as the site needs it."""
    source = next((ROOT / path for path, there in ELSEWHERE.items() if there == place), PAGES / place)

    def linked(match: re.Match[str]) -> str:
        mark, text, link = match.groups()
        path, hash_, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        file = Path(os.path.normpath(source.parent / path))
        if file.is_relative_to(PAGES):
            there = file.relative_to(PAGES).as_posix()
        elif (known := ELSEWHERE.get(file.relative_to(ROOT).as_posix())) is not None:
            there = known
        else:
            return text
        return f"{mark}[{text}]({os.path.relpath(there, Path(place).parent)}{hash_}{anchor})"

    parts = _FENCED.split(markdown)
    return "".join(part if _FENCED.fullmatch(part) else _LINK.sub(linked, part) for part in parts)
