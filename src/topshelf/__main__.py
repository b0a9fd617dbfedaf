"""``python -m topshelf`` and the ``topshelf`` command; Ctrl-C while it starts is no traceback."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Import the command line, which takes a second or two, and run it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`: its number must not go to a file that is opened later
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    before = signal.signal(signal.SIGINT, _stop)  # an interrupted import would print a traceback of torch
    # Threads that wait by spinning starve each other when the cores are shared. Torch reads this when it is imported;
    # what is set already stays.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from topshelf.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    print("stopped", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(128 + number)


if __name__ == "__main__":
    main()
