"""Whether two source trees train to the same bits: every model, loss, source of negatives and threshold estimator.

    python -m benchmarks.studies.same_numbers --before PATH/src --after PATH/src [--quick] [--only TEXT] [--json FILE]

Each tree trains every combination below on generated data in a process of its own with one thread, and answers with
SHA-256 of the weights and of the metrics per user, and with the validation score. Only the config level of the package
is used, which both trees have. What one tree refuses, the other must refuse too. Combinations that only one tree has
are listed and not compared; the exit code is 1 where numbers differ. ``--only``: combinations whose name has the text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Row, check_tree, in_tree

MODULE = "benchmarks.studies.same_numbers"
TRAIN = {"epochs": 3, "validate_every": 1, "batch_size": 256}
ORDERS = ("query", "pair")
KINDS = ("catalogue", "shared", "per_query", "in_batch")
DRAWN_FOR = ("slatk", "softmax", "bpr", "directau", "lambdaloss_at_k", "song")
ESTIMATORS = ("exact", "sampled", "iid", "weighted", "regression", "incremental")
REFUSED, SEED = "refused", 1


def combinations() -> Iterator[tuple[str, Row]]:
    """The name and the settings of each; models and losses are those of the tree."""
    from topshelf.losses import LOSSES
    from topshelf.models import MODELS

    for model, loss in product(MODELS, ("slatk", "bpr")):
        yield f"model/{model}/{loss}", {"model": {"name": model}, "loss": {"name": loss}}
    for loss, order in product(LOSSES, ORDERS):
        yield f"loss/{loss}/{order}", {"loss": {"name": loss}, "train": {"order": order}}
    for kind, loss, order in product(KINDS, DRAWN_FOR, ORDERS):
        settings = {"loss": {"name": loss}, "negatives": {"kind": kind}, "train": {"order": order}}
        yield f"negatives/{kind}/{loss}/{order}", settings
    for estimator, kind, order in product(ESTIMATORS, KINDS[:3], ORDERS):
        threshold = {"estimator": estimator, "every": 2, "n": 100}
        more = {"negatives": {"kind": kind}, "threshold": threshold, "train": {"order": order}}
        yield f"threshold/{estimator}/{kind}/{order}", more
    for refit, model in product((True, "all"), ("mf", "ease")):
        yield f"refit/{refit}/{model}", {"model": {"name": model}, "train": {"refit": refit}}
    for model in ("mf", "lightgcn"):
        yield f"row_adam/{model}", {"model": {"name": model}, "train": {"optimizer": "row_adam"}}
    yield "bfloat16", {"train": {"precision": "bfloat16"}}


def work(source: Path, only: str) -> None:
    """The worker of one tree: a line of JSON on standard output."""
    check_tree(source)
    import torch

    from topshelf.config import assemble
    from topshelf.training import load_dataset

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may be said there
    dataset = load_dataset(assemble(data="synthetic"))
    print(json.dumps({name: numbers(more, dataset) for name, more in combinations() if only in name}), file=answers)


def numbers(more: Row, dataset: Any) -> list[str]:
    """What a combination trains to, or what it is refused with."""
    from topshelf.config import assemble, merged
    from topshelf.errors import TopshelfError
    from topshelf.training import fit

    try:
        fitted = fit(assemble(data="synthetic", more=merged({"train": TRAIN}, more), seed=SEED), dataset)
        metrics = {} if fitted.measured else fitted.evaluate().per_user
    except TopshelfError as error:
        return [REFUSED, type(error).__name__]
    before_refit = fitted.measured and fitted.measured["mean"]
    return [digest(fitted.model.state_dict()), digest(metrics), repr(fitted.valid_score), repr(before_refit)]


def digest(tensors: dict[str, Any]) -> str:
    value = hashlib.sha256()
    for name in sorted(tensors):
        value.update(name.encode() + tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return value.hexdigest()


def compared(before: dict[str, list[str]], after: dict[str, list[str]]) -> Row:
    """How many combinations are equal, and the names of those that differ or that one tree does not have."""
    both = [name for name in before if name in after]
    return {
        "compared": len(both),
        "equal": sum(before[name] == after[name] for name in both),
        "refused_by_both": [name for name in both if before[name] == after[name] and after[name][0] == REFUSED],
        "different": [name for name in both if before[name] != after[name]],
        "only_before": [name for name in before if name not in after],
        "only_after": [name for name in after if name not in before],
    }


def commit(source: Path) -> str:
    """The last commit that changed the folder."""
    command = ["git", "-C", str(source), "log", "-1", "--format=%h", "--", "."]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    benchmark = Benchmark(MODULE, __doc__, quick={"only": "threshold/exact"})
    add = benchmark.parser.add_argument
    add("--before", type=Path, metavar="SRC", help="the source folder of the tree before")
    add("--after", type=Path, metavar="SRC", help="and after")
    add("--only", default="", metavar="TEXT", help="default: all combinations")
    add("--worker", type=Path, help=argparse.SUPPRESS)
    options = benchmark.parse()
    if options.worker:
        work(options.worker, options.only)
        return
    if not (options.before and options.after):
        benchmark.parser.error("--before and --after must be given: the src folders of two trees")
    sources = [options.before, options.after]
    workers = [in_tree(MODULE, source, "--worker", str(source.resolve()), "--only", options.only) for source in sources]
    answers = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise SystemExit(f"the workers ended with codes {[worker.returncode for worker in workers]}")
    result = compared(*map(json.loads, answers))
    for name in result["different"]:
        print(f"different: {name}")
    for key in ("only_before", "only_after"):
        if result[key]:
            print(f"{key.replace('_', ' ')}: {', '.join(result[key])}")
    print(f"{result['equal']} of {result['compared']} combinations are equal", end="; ")
    print(f"both trees refuse {len(result['refused_by_both'])} of them")
    benchmark.write(
        seeds=[SEED], threads=1, only=options.only, commits=[commit(source) for source in sources], **result
    )
    sys.exit(int(bool(result["different"])))


if __name__ == "__main__":
    main()
