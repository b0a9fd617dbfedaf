"""Small runs of interactions on one file."""

from __future__ import annotations

from topshelf.config import assemble
from topshelf.training import fit

HOSTILE = "<img src=x onerror=alert(1)>&\"'</script>"
TRAIN = {"epochs": 4, "validate_every": 1, "patience": 0}


def run_of(folder, name, *, model="mf", loss="slatk", seed=0, train=None):
    """A run in ``folder / name`` on ``folder / clicks.csv``."""
    settings = {"train": {**TRAIN, **(train or {})}, "data": {"split_seed": 0}}
    if model == "mf":
        settings["model"] = {"dim": 8}
    config = assemble(data=str(folder / "clicks.csv"), model=model, loss=loss, k=5, seed=seed, more=settings)
    fit(config, out=folder / name)
    return folder / name
