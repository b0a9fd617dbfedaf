"""What a study's database holds besides Optuna's own records: names of attributes, and checksums over their values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# Part of the format: databases of earlier versions have these names.
BUDGET, DATA, VERSION, STUDY = "trials", "data", "format", "study"  # of a study
WORKERS = "worker "  # of a study: the start of a name, one for each process
SLOT, ATTEMPT, FAILURES, ASKED = "ticket", "attempt", "failures", "asked"  # of a queued trial
WORKER, SETTINGS, RESULT, NOTE = "worker", "settings", "result", "note"  # of a trial that has begun
CHECKSUM = "checksum"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its checksum."""
    text = json.dumps(content, sort_keys=True)
    return {**content, CHECKSUM: hashlib.sha256(text.encode()).hexdigest()[:16]}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Whether the result of :func:`sealed` is unchanged."""
    return content.get(CHECKSUM) == sealed({key: content[key] for key in content if key != CHECKSUM})[CHECKSUM]
