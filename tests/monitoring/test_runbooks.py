"""Runbooks with commands that exist: at night nobody wants to look for another one."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from hfmds.cli.app import app
from tests.monitoring.pages import PAGES, anchors

RUNBOOKS = PAGES / "runbooks.md"


def commands() -> list[str]:
    """All commands of ours, of code blocks and within sentences."""
    text = RUNBOOKS.read_text()
    lines = [line.partition(" #")[0] for line in text.splitlines() if line.startswith("    hfmds ")]
    return sorted({*map(str.strip, lines), *re.findall(r"`(hfmds [^`]+)`", text)})


@pytest.mark.parametrize("command", commands())
def test_commands_exist(command: str) -> None:
    words = shlex.split(command)[1:]
    node: Any = typer.main.get_command(app)
    while words and hasattr(node, "commands"):
        assert words[0] in node.commands, f"there is no such command, but {list(node.commands)}"
        node = node.commands[words.pop(0)]
    options = {name for parameter in node.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_links_lead_somewhere() -> None:
    text = RUNBOOKS.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        page, _, anchor = target.partition("#")
        file = (PAGES / page).resolve() if page else RUNBOOKS
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target
