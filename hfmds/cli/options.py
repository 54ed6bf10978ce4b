"""Command-line options made from tables, so that a field is described once and not three times."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command. It is passed on as None when it was not given."""

    name: str  # of the keyword argument; the flag is --name with dashes
    kind: type  # int, float or str
    help: str
    default: str  # as --help shows it; empty: none
    panel: str  # the group it stands in under --help

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def parameter(self) -> inspect.Parameter:
        """As typer reads it from a command's signature."""
        option = typer.Option(
            self.flag,
            help=self.help,
            show_default=self.default or False,
            rich_help_panel=self.panel,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[self.kind | None, option],
        )


Command = Callable[..., None]


def with_options(options: Sequence[Option]) -> Callable[[Command], Command]:
    """Gives a command these options in place of its `**given` parameter."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        added = [option.parameter() for option in options]
        described: Any = command
        described.__signature__ = signature.replace(parameters=[*own, *added])
        return command

    return decorate
