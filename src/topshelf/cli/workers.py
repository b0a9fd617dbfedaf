"""Commands of several processes: starting them, and how each of them ends."""

from __future__ import annotations

import os
import sys

import typer

from topshelf import terminal


def start(n_processes: int, restarts: int) -> None:
    """Run this command in several processes, and report a refusal of theirs as if it were this process's."""
    from topshelf.errors import ConfigError
    from topshelf.training.launch import launch, without
    from topshelf.world import is_launched

    if is_launched():
        raise ConfigError("--processes starts processes, and torchrun has started this one; leave one of them out")
    refused = launch(n_processes, without(sys.argv[1:], "--processes", "--restarts"), restarts=restarts)
    if refused is not None:
        terminal.say(refused[0], stderr=True)
        raise typer.Exit(refused[1])


def passed_on(message: str, code: int) -> bool:
    """Whether the process that started this one will say the message."""
    if "TOPSHELF_REFUSALS" not in os.environ:
        return False
    from topshelf.training.launch import refuse

    return refuse(message, code)


def end(code: int) -> None:
    """End the process. One of several ends at once: gloo's threads abort now and then at exit (torch 2.13)."""
    if "torch.distributed" in sys.modules and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
