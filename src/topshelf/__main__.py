"""``python -m topshelf`` and the ``topshelf`` command."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Prepare the process, and run the command line."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`: no file that is opened later may get its number
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    # Threads that wait by spinning starve each other on shared cores. Torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from topshelf.cli import main as run

    run()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. It ends the process at once during an import: torch would print a traceback."""
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            print("stopped", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(128 + number)
        caller = caller.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()
