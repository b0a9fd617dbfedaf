"""Checksums of what a study's database says, so that a damaged one is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SEAL = "checksum"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its checksum."""
    text = json.dumps(content, sort_keys=True)
    return {**content, SEAL: hashlib.sha256(text.encode()).hexdigest()[:16]}


def is_whole(content: Mapping[str, Any]) -> bool:
    """Whether what :func:`sealed` made is as it was."""
    return content.get(SEAL) == sealed({name: value for name, value in content.items() if name != SEAL})[SEAL]
