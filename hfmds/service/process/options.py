"""Command-line options from the fields of pydantic models: a field is described once.

An option passes on its text, or None if it is absent. The model behind it parses and checks the
text, so that an option, a variable and a file give the same errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from hfmds.domain.validation import shown_default

Command = Callable[..., Any]


def flag_of(name: str) -> str:
    """The flag of a keyword argument: `--local-epochs` for local_epochs."""
    return "--" + name.replace("_", "-")


def option(
    name: str, field: FieldInfo, *, default: str = "", panel: str = "", variable: str = ""
) -> inspect.Parameter:
    """Make the option of a field, as a keyword argument `name` of a command.

    `default` replaces the field's own in the help; `variable` names an environment variable there.
    A boolean field with a variable becomes a pair of switches, `--x` and `--no-x`.
    """
    meaning = field.description or ""
    default = default or shown_default(field)
    notes = {"env var": variable, "default": default}
    shown_notes = "".join(f" [{name}: {text}]" for name, text in notes.items() if text)
    switch = bool(variable) and bool in (field.annotation, *get_args(field.annotation))
    flags = f"{flag_of(name)}/{flag_of('no_' + name)}" if switch else flag_of(name)
    details = typer.Option(
        flags,
        metavar=None if switch else _metavar(field.annotation),
        help=meaning + shown_notes,
        show_default=False,
        rich_help_panel=panel or None,
    )
    kind = bool if switch else str
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, details],
    )


def with_options(options: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    """Give a command these options in place of its `**given` parameter."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        described: Any = command
        described.__signature__ = signature.replace(parameters=[*own, *options])
        return command

    return decorate


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return f"[{'|'.join(get_args(annotation))}]"
    kinds = (annotation, *get_args(annotation))
    for kind, metavar in ((float, "NUMBER"), (int, "INTEGER"), (bool, "BOOLEAN"), (Path, "PATH")):
        if kind in kinds:
            return metavar
    return "TEXT"
