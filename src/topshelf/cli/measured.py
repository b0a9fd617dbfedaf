"""The metrics of a run, measured now, in parts, or before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topshelf.errors import ConfigError

if TYPE_CHECKING:
    from topshelf.evaluation import Evaluation


def evaluated(
    run: Path, protocol: str | None, cutoffs: tuple[int, ...] | None, parts: dict[str, Any] | None = None
) -> tuple[dict[str, Any], Evaluation]:
    """What a run or a folder of metrics is of, and its evaluation; ``parts`` says where and how it is divided."""
    from topshelf.parts.folder import manifest

    if manifest(run).is_file():
        return _kept(run, protocol, cutoffs, parts)
    from topshelf import training
    from topshelf.training.folder import RunFolder

    config = RunFolder.open(run).load_config()
    if config.train.refit and (protocol or config.evaluate.protocol) == "paper":
        raise ConfigError(
            f"the paper protocol leaves validation items in the ranking, and {run} was refitted on them; "
            "use --protocol standard"
        )
    if parts is not None:
        from topshelf.parts import evaluate_parts

        evaluation = evaluate_parts(run, protocol=protocol, cutoffs=cutoffs, **parts, quiet=False)
        return _about(parts["out"]), evaluation
    fitted = training.load(run)
    about = {"finished": fitted.is_finished, "data": fitted.dataset.name, "metric": fitted.task.metric(fitted.config)}
    return about, fitted.evaluate(protocol, cutoffs)


def _kept(
    path: Path, protocol: str | None, cutoffs: tuple[int, ...] | None, parts: dict[str, Any] | None
) -> tuple[dict[str, Any], Evaluation]:
    """An evaluation that was written before: its protocol is what it is, its cut-offs are a choice of those it has."""
    from topshelf.parts import read_evaluation

    if parts is not None:
        raise ConfigError(f"--out is for a run that is evaluated, and {path} has the metrics of one; leave it out")
    found = read_evaluation(path)
    if protocol not in (None, found.protocol):
        raise ConfigError(f"{path} was evaluated by protocol {found.protocol!r}, got --protocol {protocol}")
    if cutoffs is None:
        return _about(path), found
    if not set(cutoffs) <= set(found.cutoffs):
        have, got = (",".join(map(str, some)) for some in (found.cutoffs, cutoffs))
        raise ConfigError(f"{path} was evaluated at the cut-offs {have}, and has no others, got {got}")
    ends = {"", *map(str, cutoffs)}  # "" is that of AUC
    per_user = {name: values for name, values in found.per_user.items() if name.partition("@")[2] in ends}
    extras = {name: value for name, value in found.extras.items() if name.partition("@")[2] in ends}
    return _about(path), replace(found, cutoffs=cutoffs, per_user=per_user, extras=extras)


def _about(path: Path) -> dict[str, Any]:
    from topshelf.parts import PartsFolder

    content = PartsFolder.open(path).content  # of a finished run: no other is evaluated in parts
    return {"finished": True, "data": content.get("data"), "metric": content.get("metric")}
