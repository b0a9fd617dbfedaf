"""The command line, run in this process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from topshelf.cli import main


def run_topshelf(*arguments, code=0, columns=160) -> tuple[str, str]:
    """What ``topshelf`` with these arguments printed, and what it said on stderr; it must end with this code."""
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        patch.setattr(sys, "argv", ["topshelf", *map(str, arguments)])
        patch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as stop:
            main()
    assert (stop.value.code or 0) == code, output.getvalue() + errors.getvalue()
    return output.getvalue(), errors.getvalue()
