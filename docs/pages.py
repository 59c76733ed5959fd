"""Makes the documentation site's pages of the files that are read on GitHub too.

`mkdocs.yml` names this file as a hook. README.md becomes the first page, the other pages of the
root get a place of their own, and links between them and `docs/` are turned accordingly. A file
that a page links to and that is no page (a schema, a program) is put next to the pages; a link to a
folder becomes its text. The reference of `dpfedadamw.api` is made of its docstrings.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parent.parent
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "ERRATA.md": "ERRATA.md",
    "SECURITY.md": "SECURITY.md",
    "LICENSE": "LICENSE.txt",
}
# Pictures too: what follows their exclamation mark has the form of a link.
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r" *(```|~~~)")
_ITEM = re.compile(r"\d+\. ")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name headings as GitHub does, so that the same links reach them."""
    config.mdx_configs["toc"] = {"slugify": slugify(case="lower"), "permalink": True}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root's pages, and whatever else of the repository a page links to."""
    for source, place in FROM_ROOT.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    # What the sources' docstrings say has no file of its own.
    reference = "# dpfedadamw.api\n\n::: dpfedadamw.api\n"
    files.append(File.generated(config, "api.md", content=reference))
    places = set()
    for page in [ROOT / source for source in FROM_ROOT] + sorted((ROOT / "docs").glob("*.md")):
        for match in _LINK.finditer(page.read_text("utf-8")):
            target = _target(page.parent.relative_to(ROOT).as_posix(), match[2])
            if (ROOT / target).is_file() and _place(target) == f"source/{target}":
                places.add(target)
    for target in sorted(places):
        files.append(File.generated(config, f"source/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page, and indent its numbered lists as Python-Markdown reads them."""
    del config, files
    here = page.file.src_uri
    folder = "." if here in FROM_ROOT.values() else "docs"

    def turned(match: re.Match[str]) -> str:
        target = _target(folder, match[2])
        if (ROOT / target).is_dir():
            return match[1]
        place = relpath(_place(target), str(PurePosixPath(here).parent))
        return f"[{match[1]}]({place}{match[3] or ''})"

    lines, fenced, numbered = [], False, False
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        if line and not line.startswith(" "):
            numbered = bool(_ITEM.match(line)) and not fenced
        # GitHub has what belongs to "1. " begin below its text, Python-Markdown four columns in.
        widened = f" {line}" if numbered and line.startswith("   ") else line
        lines.append(widened if fenced else _LINK.sub(turned, widened))
    return "\n".join(lines)


def _target(folder: str, link: str) -> str:
    """The path, from the root, of what a page in `folder` links to."""
    return normpath(f"{folder}/{link}")


def _place(target: str) -> str:
    """Where on the site a file of the repository stands."""
    if target in FROM_ROOT:
        return FROM_ROOT[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"source/{target}"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the keyboard scroll wide tables and blocks of code (contrast.css makes both scroll)."""
    del page, config, files
    return (
        html.replace("<table>", '<div tabindex="0" class="wide"><table>')
        .replace("</table>", "</table></div>")
        .replace("<pre>", '<pre tabindex="0">')
    )
