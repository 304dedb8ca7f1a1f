"""MkDocs hooks: make the pages, which are written for a forge, work as a site too."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(!?)\[((?:[^\]\\]|\\.)*)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def slugify(heading: str, separator: str) -> str:
    """Return the anchor that a forge gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make README.md the start page, unless docs/ has one."""
    if files.get_file_from_path("index.md") is None:
        readme = PurePosixPath(config.config_file_path).parent / "README.md"
        with open(readme, encoding="utf-8") as file:
            text = file.read().replace("](docs/", "](")
        files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files that are in the repository but not on the site by the names of these files."""
    folder = PurePosixPath(page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        image, text, target, anchor = link.groups()
        path = resolve(folder, target)
        if path == "../README.md":
            return f"{image}[{text}]({'../' * (len(folder.parts))}index.md{anchor or ''})"
        if not path.startswith("../") and files.get_file_from_path(path) is not None:
            return link[0]
        in_repository = path.removeprefix("../") if path.startswith("../") else path
        if page.file.src_uri == "index.md" or path.startswith("../"):
            return text if in_repository in text.replace("`", "") else f"{text} (`{in_repository}`)"
        return link[0]

    return LINK.sub(replaced, markdown)


def resolve(folder: PurePosixPath, target: str) -> str:
    """Return the path of a relative link, with `..` only at its beginning."""
    parts: list[str] = []
    for part in (folder / target).parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
