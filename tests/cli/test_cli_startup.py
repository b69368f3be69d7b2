"""What must not be imported to answer quickly. Times are measured by benchmarks/startup.py; here, what is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpurig.cli.commands import COMMANDS

HEAVY = {
    "torch", "torchvision", "numpy", "scipy", "pandas", "pyarrow", "rich", "msgspec", "textual", "starlette", "jinja2",
    "yaml", "requests", "httpx", "boto3", "transformers", "timm",
}  # fmt: skip
SLOW_STANDARD = {
    "asyncio", "decimal", "difflib", "email", "http", "importlib.metadata", "json", "logging", "multiprocessing",
    "sqlite3", "ssl", "statistics", "tempfile", "tomllib", "unittest", "urllib.request", "xml",
}  # fmt: skip
ALSO_NOT_FOR_HELP = {"csv", "gpurig.catalog", "gpurig.model", "gpurig.plan", "gpurig.predict", "gpurig.trace"} | {
    module for _, module, _ in COMMANDS
}


def _loaded(*arguments: str) -> set[str]:
    """Modules in memory after one command."""
    code = (
        "import sys\n"
        "from gpurig.cli.main import run\n"
        "code = run(sys.argv[1:])\n"
        "print(*sorted(sys.modules), sep='\\n', file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout
    return set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_help_loads_no_command_and_nothing_heavy(arguments: list[str]) -> None:
    loaded = _loaded(*arguments)
    assert "click" in loaded
    assert loaded & (HEAVY | SLOW_STANDARD | ALSO_NOT_FOR_HELP) == set()


@pytest.mark.parametrize(
    "arguments", [["offers", "--gpu", "A100"], ["gpus"], ["gpus", "T4"], ["offers", "--help"]], ids=" ".join
)
def test_catalogue_commands_load_nothing_heavy(arguments: list[str]) -> None:
    loaded = _loaded(*arguments)
    assert "gpurig.catalog.query" in loaded
    assert loaded & (HEAVY | SLOW_STANDARD) == set()


def test_import_of_the_package_is_free() -> None:
    code = "import sys; before = set(sys.modules); import gpurig; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"__future__", "gpurig"}


def test_python_dash_m_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "gpurig", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("gpurig, version ")


def test_every_command_of_the_table_exists_with_its_help() -> None:
    import importlib

    import click

    for name, module, text in COMMANDS:
        command = importlib.import_module(module).command
        assert isinstance(command, click.Command)
        assert command.name == name
        assert text
        assert "Examples:" in (command.help or "")
