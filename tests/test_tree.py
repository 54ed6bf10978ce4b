"""The tree is the map: small folders, and one name for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAMS = ("coordinator", "edge_client", "synthesis_store")
PACKAGES = ("benchmarks", "hfmds", *PROGRAMS)
GENERATED = REPOSITORY / "hfmds" / "v1"

MOST_MODULES = 12

# Each program or library part has one of these, and they differ by the folder.
FOR_EACH_PROGRAM = {"__main__", "metrics", "settings", "tables", "wiring"}

# A noun that several layers deal with: its module has the same name in each of them.
NOUNS_OF_LAYERS = {
    "backup",
    "database",
    "datasets",
    "devices",
    "downloads",
    "evaluation",
    "events",
    "members",
    "operations",
    "pools",
    "runs",
    "serving",
    "snapshots",
    "states",
    "tasks",
}


@cache
def modules() -> tuple[Path, ...]:
    return tuple(
        path
        for package in PACKAGES
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        if path.parent != GENERATED
        and "migrations" not in path.parts
        and path.name != "__init__.py"
    )


def shown(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_no_folder_has_more_modules_than_a_reader_can_take_in() -> None:
    folders: dict[str, int] = defaultdict(int)
    for path in modules():
        folders[shown(path.parent)] += 1
    assert {name: count for name, count in folders.items() if count > MOST_MODULES} == {}


def test_every_package_says_what_it_is_for() -> None:
    folders = {path.parent for path in modules() if path.parent.parent.name != "benchmarks"}
    missing = [shown(folder) for folder in folders if not (folder / "README.md").exists()]
    assert sorted(missing) == []


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(shown(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_a_module_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        places[path.stem].append(shown(path))
    repeated = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert {
        name: paths
        for name, paths in repeated.items()
        if name not in FOR_EACH_PROGRAM | NOUNS_OF_LAYERS
    } == {}
