"""Pages with commands that exist: at night nobody wants to look for another one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from hfmds.cli.app import app
from tests.monitoring.pages import PAGES, anchors

RUNBOOKS = PAGES / "runbooks.md"
ROOT = PAGES.parent
ALL_PAGES = [
    ROOT / "README.md",
    *sorted(PAGES.glob("*.md")),
    *sorted(ROOT.glob("k8s/**/README.md")),
]


def commands(page: Path) -> set[str]:
    """All commands of ours, of code blocks and within sentences."""
    text = page.read_text().replace("\\\n", "")
    blocks = re.findall(r"^    (?:\$ )?(?:\.venv/bin/)?(hfmds .+)$", text, re.MULTILINE)
    lines = [part.strip() for block in blocks for part in block.partition(" #")[0].split("&&")]
    return {*lines, *re.findall(r"`(hfmds [^`]+)`", text)}


@cache
def all_commands() -> Any:
    return typer.main.get_command(app)


def unknown(command: str) -> Iterator[str]:
    """What there is not of a command, or of its options."""
    words = [word.strip("[]") for word in shlex.split(command)][1:]
    node = all_commands()
    while words and hasattr(node, "commands"):
        if words[0] not in node.commands:
            yield f"{command}: there is no {words[0]}, but {list(node.commands)}"
            return
        node = node.commands[words.pop(0)]
    options = {"--help", *(name for parameter in node.params for name in parameter.opts)}
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in options:
            yield f"{command}: there is no {word}"


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    assert not [problem for command in sorted(commands(page)) for problem in unknown(command)]


def test_runbooks_and_operations_are_full_of_commands() -> None:
    assert min(len(commands(RUNBOOKS)), len(commands(PAGES / "operations.md"))) > 20


def test_links_lead_somewhere() -> None:
    text = RUNBOOKS.read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets
    for target in targets:
        page, _, anchor = target.partition("#")
        file = (PAGES / page).resolve() if page else RUNBOOKS
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target
