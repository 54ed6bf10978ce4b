"""The docs agree with the code: generated tables, links, commands and the README's example."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from docs.generate import pages
from hfmds.cli.app import app
from tests.monitoring.pages import anchors

ROOT = Path(__file__).resolve().parents[1]
GENERATED = pages()
PACKAGES = ("coordinator", "edge_client", "hfmds", "synthesis_store", "tests")
MANUAL = [
    *ROOT.glob("*.md"),
    *(p for p in (ROOT / "docs").rglob("*.md") if p.name != "table.md"),
    *(p for folder in ("benchmarks", "k8s") for p in (ROOT / folder).rglob("*.md")),
]
PACKAGE_PAGES = [p for package in PACKAGES for p in (ROOT / package).rglob("*.md")]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", GENERATED, ids=name)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    assert page.read_text() == GENERATED[page], "run make docs"


@pytest.mark.parametrize("page", [*MANUAL, *PACKAGE_PAGES], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):  # the web
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", MANUAL, ids=name)
def test_commands_exist(page: Path) -> None:
    assert not [fault for command in sorted(commands(page)) for fault in faults(command)]


def commands(page: Path) -> set[str]:
    """Every hfmds command in code blocks and within sentences."""
    text = page.read_text().replace("\\\n", "")
    blocks = re.findall(r"^    (?:\$ )?(?:\.venv/bin/)?(hfmds .+)$", text, re.MULTILINE)
    lines = [part.strip() for block in blocks for part in block.partition(" #")[0].split("&&")]
    return {*lines, *re.findall(r"`(hfmds [a-z][^`]+)`", text)}


def faults(command: str) -> Iterator[str]:
    """The sub-commands and options that do not exist."""
    words = [word.strip("[]") for word in shlex.split(command)][1:]
    node = all_commands()
    while words and hasattr(node, "commands"):
        if words[0] not in node.commands:
            yield f"{command}: there is no {words[0]}, but {list(node.commands)}"
            return
        node = node.commands[words.pop(0)]
    options = {"--help", *(option for parameter in node.params for option in parameter.opts)}
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in options:
            yield f"{command}: there is no {word}"


@cache
def all_commands() -> Any:
    return typer.main.get_command(app)


def test_the_readme_example_runs() -> None:
    text = (ROOT / "README.md").read_text()
    example = text.partition("```python\n")[2].partition("```")[0].replace("rounds=12", "rounds=1")
    one_thread = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
    }  # many wait for each other on a busy machine
    result = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, env=one_thread
    )
    assert re.fullmatch(r"1 \d+\.\d%\n", result.stdout), result.stderr
