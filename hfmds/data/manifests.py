"""Reads a CSV file with the columns path and label: image files and their classes.

    path,label
    2024/img_0001.jpg,cat
    /media/card/7.png,dog

Paths are relative to the list's folder. Labels are class names, or numbers. Other columns
are ignored.
"""

from __future__ import annotations

import csv
from pathlib import Path

from hfmds.data.folders import looking_at
from hfmds.errors import ConfigurationError

_COLUMNS = ("path", "label")


def read_manifest(manifest: Path) -> tuple[list[Path], list[str]]:
    """Return files and labels in the order of the list; an error names the line at fault."""
    files: list[Path] = []
    labels: list[str] = []
    try:
        with looking_at(manifest), manifest.open(newline="", encoding="utf-8-sig") as text:
            rows = csv.DictReader(text, strict=True)
            if missing := set(_COLUMNS) - set(rows.fieldnames or ()):
                raise ConfigurationError(
                    f"{manifest} has no column {' and no column '.join(sorted(missing))} in its "
                    "first line; begin it with: path,label"
                )
            for row in rows:
                path, label = ((row[column] or "").strip() for column in _COLUMNS)
                if not path or not label:
                    raise ConfigurationError(
                        f"{manifest}, line {rows.line_num}: a path and a label are needed, here "
                        f"they are {path!r} and {label!r}; complete or remove the line"
                    )
                files.append(manifest.parent / path)
                labels.append(label)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{manifest} cannot be read as a CSV file in UTF-8 ({error}); write it again"
        ) from error
    if not files:
        raise ConfigurationError(f"{manifest} lists no images; a device needs at least one")
    return files, labels
