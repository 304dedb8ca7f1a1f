"""MkDocs hooks: pages written for a code forge work as a site too."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"\[((?:[^\]\\]|\\.)*)\]\(((?:\.\./)+[^)\s#]+)(?:#[^)\s]*)?\)")


def slugify(heading: str, separator: str) -> str:
    """Return the anchor that a forge gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify
    return config


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files outside docs/, which the site does not have, by the names of these files."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = resolve(folder / target)
        if path.startswith("docs/"):
            return link[0]
        return text if path in text else f"{text} (`{path}`)"

    return LINK.sub(replaced, markdown)


def resolve(path: PurePosixPath) -> str:
    """Return a relative path without `..`."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
