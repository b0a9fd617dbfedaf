"""Starts the command line with the process settings that must stand before torch is imported."""

from __future__ import annotations

import os


def main() -> None:
    # Threads that wait by spinning starve each other when the cores are shared: 20 epochs of SL@20 on MovieLens-100K
    # took 19.6 s instead of 1.2 s beside two other busy processes on 2 cores (2026-11-15).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from topshelf.cli import main as command_line

    command_line()
