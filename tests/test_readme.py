"""The README tells the truth about the programs."""

from __future__ import annotations

import re
from pathlib import Path

from coordinator.settings import CoordinatorSettings
from edge_client.settings import EdgeSettings
from hfmds.cli.recipe.file import spec_from
from hfmds.domain.methods import Hfmds
from hfmds.service.process.settings import ServiceSettings, settings_table
from synthesis_store.settings import StoreSettings

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAMS: dict[str, type[ServiceSettings]] = {
    "coordinator": CoordinatorSettings,
    "store": StoreSettings,
    "edge": EdgeSettings,
}


def expected_table() -> str:
    """One row per variable and default: which programs know it, what it means."""
    known_by: dict[tuple[str, str, str], list[str]] = {}
    for program, settings in PROGRAMS.items():
        for row in settings_table(settings):
            variable, _flag, default, meaning = (
                row.removeprefix("| ").removesuffix(" |").split(" | ", 3)
            )
            known_by.setdefault((variable, default, meaning), []).append(program)
    rows = [
        f"| {variable} | {', '.join(programs)} | {default} | {meaning} |"
        for (variable, default, meaning), programs in sorted(known_by.items())
    ]
    return "\n".join(["| variable | known to | default | meaning |", "|---|---|---|---|", *rows])


def test_the_settings_table_is_that_of_the_code() -> None:
    table = expected_table()
    assert table in (REPOSITORY / "README.md").read_text(), f"put this into the README:\n{table}"


def test_files_the_readme_names_exist() -> None:
    text = (REPOSITORY / "README.md").read_text()
    rows = text.partition("## Where to change what")[2].splitlines()
    named = [name for row in rows for name in row.split("`")[1::2] if "/" in name]
    assert len(named) > 10
    missing = [name for name in named if not (REPOSITORY / name).exists()]
    assert not missing


def test_the_recipe_in_the_readme_is_one(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text()
    file = tmp_path / "recipe.toml"
    file.write_text(text.partition("```toml\n")[2].partition("```")[0])
    spec = spec_from(file, {})
    assert isinstance(spec.recipe.method, Hfmds)
    assert spec.recipe.method.steps == 60
    assert spec.policy.minimum_devices == 2


def pages() -> list[Path]:
    return [
        REPOSITORY / "README.md",
        REPOSITORY / "CHANGELOG.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
    ]


def test_what_the_pages_link_to_exists() -> None:
    links = [
        (page, target)
        for page in pages()
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text())
        if not re.match(r"[a-z]+:", target)  # of the web
    ]
    assert len(links) > 15
    broken = [
        f"{page.relative_to(REPOSITORY)}: {target}"
        for page, target in links
        if not (page.parent / target).exists()
    ]
    assert not broken


def test_no_placeholder_is_left_in_the_docs() -> None:
    for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        words = re.findall(r"^[A-Z_]{6,}$", path.read_text(), flags=re.MULTILINE)
        assert not words, path
