"""Errors as text for a person and as JSON for a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpurig.cli.commands import COMMANDS
from gpurig.errors import GpurigError, InputError

if TYPE_CHECKING:
    from gpurig.cli.render import Json


def error_text(error: GpurigError) -> str:
    """What happened, the facts indented, a blank line, the next command."""
    lines = [f"error: {error.message}", *(f"  {detail}" for detail in error.details)]
    if error.hint:
        lines += ["", f"hint: {error.hint}"]
    return "\n".join(lines)


def error_object(error: GpurigError) -> Json:
    """The error for a script to read."""
    return {
        "code": error.code,
        "message": error.message,
        "details": list(error.details),
        "hint": error.hint,
        "exit_code": error.exit_code,
    }


def print_error(error: GpurigError, *, as_json: bool) -> None:
    """Text to stderr; with ``--json`` also the error object to stdout, so that a reader always gets JSON."""
    if as_json:
        from gpurig.cli.render import print_json

        print_json("error", error_object(error))
    click.echo(error_text(error), err=True)


def of_click(error: click.ClickException) -> GpurigError:
    """A fault in the call, as found by click, in our form."""
    message = error.format_message().rstrip(".")
    details: tuple[str, ...] = ()
    if isinstance(error, click.NoSuchOption):
        message = f"no such option: {error.option_name}"
        details = _did_you_mean(error.possibilities or ())
    elif message.startswith("No such command"):
        name = message.split("'")[1] if "'" in message else ""
        message = f"no such command: {name}"
        details = _did_you_mean(_close_commands(name))
    else:
        message = message[:1].lower() + message[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "gpurig"
    return InputError(message, details=details, hint=f"run {path} --help")


def _did_you_mean(names: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return (f"did you mean {', '.join(sorted(names))}?",) if names else ()


def _close_commands(name: str) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, [command for command, _, _ in COMMANDS], n=2, cutoff=0.5)
