"""Several processes of this machine that run one command, started and restarted by torch's elastic launcher."""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from topshelf.errors import TrainingError, at_least

REFUSALS = "TOPSHELF_REFUSALS"  # the folder where a process says why it ended, instead of being started again
_STOP_SECONDS = 60  # for a checkpoint, when the user asks to stop


def launch(n_processes: int, arguments: Sequence[str], *, restarts: int = 3) -> tuple[str, int] | None:
    """Run ``python -m topshelf ARGUMENTS`` in several processes; returns the message and exit code of a refusal.

    A process that is killed or loses the others ends them all; they are started again, at most ``restarts`` times, and
    continue from the last checkpoint. A refusal, such as a setting out of range, is not tried again. The processors
    are divided among the processes, unless OMP_NUM_THREADS says otherwise.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    at_least("--processes", n_processes, 1)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    threads = str(max(1, (os.cpu_count() or 1) // n_processes))
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, threads)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=n_processes,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=at_least("--restarts", restarts, 0),
        shutdown_timeout=_STOP_SECONDS,
    )
    with tempfile.TemporaryDirectory(prefix="topshelf-") as folder:
        os.environ[REFUSALS] = folder
        try:
            elastic_launch(config, sys.executable)("-m", "topshelf", *arguments)
        except SignalException:  # passed on to the processes, which have saved their state
            return first_refusal(folder) or ("stopped", 130)
        except ChildFailedError as error:
            if (refused := first_refusal(folder)) is not None:
                return refused
            rank, failure = error.get_first_failure()
            raise TrainingError(
                f"{n_processes} processes ended {restarts + 1} times before the run was finished; the last time "
                f"process {rank} did, with exit code {failure.exitcode}. The last checkpoint is kept; continue with "
                "topshelf train --resume"
            ) from None
        finally:
            del os.environ[REFUSALS]
        return first_refusal(folder)


def refuse(message: str, code: int) -> bool:
    """In a process that :func:`launch` started: leave the message for it. Elsewhere nothing, and False."""
    folder = os.environ.get(REFUSALS)
    if folder is None or "RANK" not in os.environ:
        return False
    (Path(folder) / os.environ["RANK"].zfill(6)).write_text(json.dumps([message, code]), encoding="utf-8")
    return True


def first_refusal(folder: str) -> tuple[str, int] | None:
    """The message and exit code of the first process that left one."""
    for path in sorted(Path(folder).iterdir()):
        message, code = json.loads(path.read_text(encoding="utf-8"))
        return str(message), int(code)
    return None


def without(arguments: Sequence[str], *options: str) -> list[str]:
    """The arguments of a command without some options and their values."""
    kept, is_value = [], False
    for argument in arguments:
        if is_value:
            is_value = False
        elif argument in options:
            is_value = True
        elif not argument.startswith(tuple(f"{option}=" for option in options)):
            kept.append(argument)
    return kept
