"""The command line: one file per command, each of which parses, calls one library function and renders."""

from __future__ import annotations


def main() -> None:
    """Entry point of ``gpurig`` and ``python -m gpurig``."""
    from gpurig.cli.main import run

    raise SystemExit(run())
