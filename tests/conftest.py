"""Shared by the tests."""

from __future__ import annotations

import os

# Before torch is imported: spinning threads starve each other on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
