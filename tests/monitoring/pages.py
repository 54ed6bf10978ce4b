"""Pages of docs/ and the headings that links can name."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs"


def has_anchor(target: str) -> bool:
    """Whether `page.md` is there, or of `page.md#anchor` the heading."""
    page, _, anchor = target.partition("#")
    file = PAGES / page
    return file.is_file() and (not anchor or anchor in anchors(file))


def anchors(file: Path) -> list[str]:
    """Of all headings, as web pages of repositories make them."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
