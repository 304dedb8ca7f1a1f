"""Check that the built site loads nothing from other hosts: `python docs/check_site.py site`."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

EXTERNAL = re.compile(r"(?:https?:)?//", re.IGNORECASE)
STYLE = re.compile(r"(?:@import\s*|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)
LOADING_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "preconnect",
    "prefetch",
    "dns-prefetch",
    "manifest",
}
LOADING = {"src", "srcset", "poster", "data"}
FETCHING = {
    "mermaid": "a diagram makes the theme's script load mermaid from unpkg.com",
    "md-source": "a repository URL makes the theme's script ask the repository's host for facts",
}
"""Class names on which the theme's script loads something from another host."""


class Loads(HTMLParser):
    """Collects what a page loads from other hosts when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        urls = [given[name] for name in LOADING & given.keys()]
        if tag == "link" and LOADING_LINKS & set(given.get("rel", "").lower().split()):
            urls.append(given.get("href", ""))
        self.found += [f"<{tag}> {url}" for url in urls if EXTERNAL.match(url.strip())]
        self.found += STYLE.findall(given.get("style", ""))
        self.found += [FETCHING[name] for name in given.get("class", "").split() if name in FETCHING]

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.found += STYLE.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False


def external_loads(path: Path) -> list[str]:
    text = path.read_text("utf-8")
    if path.suffix == ".css":
        return STYLE.findall(text)
    page = Loads()
    page.feed(text)
    return page.found


def main() -> int:
    site = Path(sys.argv[1])
    files = [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".css")]
    found = [f"{path}: {load}" for path in files for load in external_loads(path)]
    print("\n".join(found) or f"{len(files)} files in {site}/, nothing is loaded from other hosts")
    return bool(found) or not files


if __name__ == "__main__":
    sys.exit(main())
