"""The group of all commands. A command's module is imported only when that command is run."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from gpurig import __version__
from gpurig.cli.commands import COMMANDS
from gpurig.cli.session import Session
from gpurig.errors import GpurigError

EXIT_CODES = "Exit codes: 0 done, 1 the answer is no, 2 the call or the input is wrong, 3 something outside failed."


class LazyGroup(click.Group):
    """A group that knows its commands by name and help line, and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None: no such command."""
        for name, module, _ in COMMANDS:
            if name == cmd_name:
                command = import_module(module).command
                assert isinstance(command, click.Command)
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, _, text in COMMANDS])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="gpurig")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """From an unmodified training script to the right cloud GPU, priced and explained before anything is rented.

    \b
    Examples:
      gpurig plan train.py -- --batch-size 32
      gpurig gpus --min-memory 40 --dtype bf16
      gpurig offers --gpu A100 --continent EU
      gpurig COMMAND --help
    """
    if ctx.obj is None:
        ctx.obj = Session.of_process()


def run(arguments: list[str] | None = None, session: Session | None = None) -> int:
    """Run one command and return its exit code. Every error is rendered here, once."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = cli.main(arguments, prog_name="gpurig", standalone_mode=False, obj=session)
    except GpurigError as error:
        return _fail(error, arguments)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _fail(_as_input_error(error), arguments)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except SystemExit:  # click's answer to a closed pipe: the reader, for example `head`, has seen enough
        return 0
    return code if isinstance(code, int) else 0


def _fail(error: GpurigError, arguments: list[str]) -> int:
    from gpurig.cli.errors import print_error

    print_error(error, as_json="--json" in arguments)
    return error.exit_code


def _as_input_error(error: click.ClickException) -> GpurigError:
    from gpurig.cli.errors import of_click

    return of_click(error)
