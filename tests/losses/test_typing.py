"""What a type checker sees of a call: the signature, not nn.Module's ``Any``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPET = """
import torch
from topshelf.losses import LISTWISE, LOSSES, ListNet, Loss, SLatK

scores = torch.ones(1)
reveal_type(SLatK(k=5)(scores, scores.unsqueeze(1), threshold=scores))
reveal_type(ListNet()(scores.unsqueeze(1), scores.unsqueeze(1)))
reveal_type(LOSSES["bpr"]()(scores))
reveal_type(LISTWISE["slatk"]()(scores, scores))
SLatK(k=5)(scores, thresholds=scores)
SLatK(k=5)("scores")
ListNet()(scores)


class Mine(Loss):
    pass


reveal_type(Mine()(scores))
"""


@pytest.mark.slow
def test_mypy_sees_the_signature_of_a_loss(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    monkeypatch.chdir(ROOT)  # the cache of `make check`: torch alone takes mypy a quarter of a minute
    shown, errors, _ = api.run(["--config-file", "pyproject.toml", str(snippet)])
    assert not errors
    assert re.findall(r'Revealed type is "(.+)"', shown) == ["torch._tensor.Tensor"] * 5
    assert re.findall(r"\[([a-z-]+)\]$", shown, flags=re.MULTILINE) == ["call-arg", "arg-type", "call-arg"]
