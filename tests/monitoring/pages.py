"""Pages of docs/ and the headings that links can name."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs"


def has_anchor(target: str) -> bool:
    """Return whether the page exists, and its heading if the target has an anchor."""
    page, _, anchor = target.partition("#")
    file = PAGES / page
    return file.is_file() and (not anchor or anchor in anchors(file))


def anchors(file: Path) -> list[str]:
    """Return the anchors of all headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
