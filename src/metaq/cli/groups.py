"""What every command and group of commands is made of: help in plain text with examples, and groups that load on demand."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

import typer
import typer.core
import typer.main

from metaq.cli.access import add_shared_options
from metaq.cli.quick_values import read_values_quickly

UsageError: Final[Any] = typer.BadParameter.__mro__[1]
"""typer's error of a command line; from where depends on its version."""


class _Shared:
    """Help that ends with examples, as they are typed; plain values that are read without pydantic; errors that name the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except UsageError as error:
            # Typer leaves this out where the value of an option is missing.
            error.ctx = error.ctx or ctx
            raise
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        read_values_quickly(found)
        return found

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from metaq.cli.examples import EXAMPLES

        lines = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
        if lines:
            with formatter.section("Examples"):
                for line in lines:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)  # type: ignore[misc]


class MetaqCommand(_Shared, typer.core.TyperCommand):
    """One command."""


class MetaqGroup(_Shared, typer.core.TyperGroup):
    """A group of commands."""


class App(typer.Typer):
    """A typer application whose help and errors are plain text: rich takes longer to load than most commands to run."""

    def __init__(self, text: str, *, group: type[typer.core.TyperGroup] = MetaqGroup, **more: Any) -> None:
        super().__init__(
            **{
                "cls": group, **({"help": text} if text else {}), "no_args_is_help": True, "add_completion": False,
                "rich_markup_mode": None, "pretty_exceptions_enable": False, **more,
            }
        )  # fmt: skip

    def command(
        self, name: str | None = None, *, cls: type[typer.core.TyperCommand] | None = None, **more: Any
    ) -> Callable[..., Any]:
        return super().command(name, cls=cls or MetaqCommand, **more)


class Lazy(NamedTuple):
    """Where a command or a group of commands is: an `App`, or the function of one command."""

    module: str
    name: str
    summary: str

    def load(self, command: str) -> Any:
        """Import it. Returns what typer makes of it."""
        found = getattr(importlib.import_module(self.module), self.name)
        if not isinstance(found, typer.Typer):
            one = App("")
            one.command(command)(found)
            made: Any = typer.main.get_command(one)
        else:
            made = typer.main.get_group(found)
        made.name = command
        add_shared_options(made)
        return made


class LazyGroup(MetaqGroup):
    """A group whose commands are imported when one of them is called; its help knows their summaries."""

    table: ClassVar[Mapping[str, Lazy]]

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        for name, lazy in self.table.items():
            self.add_command(MetaqCommand(name=name, callback=None, help=lazy.summary), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.table[name].load(name) if name is not None and command is not None else command, rest

    def load_all(self) -> LazyGroup:
        """Import everything: for those who look at all commands, such as pages about them. Returns this group."""
        for name, lazy in self.table.items():
            self.commands[name] = lazy.load(name)
        return self

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # `metaq consume | head`: the reader has what it wanted. What is buffered goes nowhere, without a word at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
