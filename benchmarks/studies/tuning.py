"""A study in two processes, one of which is killed: no trial is lost; the best is compared with the paper's optimum.

    python -m benchmarks.studies.tuning [--quick] [--from general|shipped] [--trials N] [--set NAME=VALUE]
        [--range NAME=...] [--out FOLDER] [--json FILE]

30 trials of SL@20 with MF (d 64) on Health by ``topshelf tune``: the same command in two processes with one thread
each. After a third of the trials the second is killed (SIGKILL) in the middle of one, and started again with
``--resume``. Then every slot of the budget must have ended in exactly one complete or pruned trial.

The first trial has the general settings (``--from general``), written to a TOML file so that those shipped for Health
are not used, or the shipped ones. The ranges are the loss's own, which are the paper's. ``--set`` and ``--range`` are
handed to ``topshelf tune``: batches of pairs instead of users, say, or a range of their size.

The paper's optimum for Health (learning rate 0.1, no decay, tau 0.2, tau_w 2.5, T_beta 5; the exact catalogue scaled to
1000 items; 200 epochs, no early stop) is trained on the same train part and measured on the same validation part, as
published (pairs in batches of 1024, N(0, 1)) and with batches of users as shipped. The study has used that
validation part 30 times, so all are also measured on other validation splits of the same train part, with other
starts. The test part is never read. ``--quick``: 4 short trials on MovieLens-100K, where that optimum means nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import HEALTH, MOVIELENS, Benchmark, Row, each
from benchmarks.harness import table as table_of
from topshelf.config import RunConfig, assemble, make_config, merged, read_config, to_toml
from topshelf.training.build import resolve
from topshelf.tuning import queue
from topshelf.tuning.attributes import NOTE, RESULT, SETTINGS, SLOT, WORKER
from topshelf.tuning.folder import StudyFolder
from topshelf.tuning.runner import Parts, Runner
from topshelf.tuning.storage import folder_url, open_study

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optuna.study import Study
    from optuna.trial import FrozenTrial

SEED = 0  # of the study; the shipped settings were chosen on others
METRIC = "ndcg@20"
FIRST, BEST = "the first trial", "the best trial"
PUBLISHED, BY_USERS = "the paper's optimum, as published", "the paper's optimum, batches of users"
PAPER = {
    "model": {"dim": 64},
    "loss": {"tau": 0.2, "tau_weight": 2.5},
    "negatives": {"kind": "catalogue", "effective_n": 1000},
    "threshold": {"every": 5},
    "train": {"learning_rate": 0.1, "weight_decay": 0.0, "patience": 0},
}
PAIRS = {"model": {"init": "normal"}, "train": {"order": "pair", "batch_size": 1024}}


@dataclass(frozen=True)
class Plan:
    data: str = HEALTH
    trials: int = 30
    epochs: int = 200
    other_seeds: tuple[int, ...] = (1, 2)
    settings: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()


# Pairs, because a trial must take some seconds for a process to be killed in the middle of it.
QUICK = Plan(MOVIELENS, 4, 6, (1,), ("train.order=pair", "train.batch_size=1024"))


def command(plan: Plan, out: Path, *, general: bool) -> list[str]:
    """The arguments of ``topshelf`` that begin the study, and those of a second process that joins it."""
    fixed = ["--data", plan.data, "--model", "mf", "--loss", "slatk", "--k", "20", "--seed", str(SEED)]
    for setting in ("model.dim=64", f"train.epochs={plan.epochs}", *plan.settings):
        fixed += ["--set", setting]
    for given in plan.ranges:
        fixed += ["--range", given]
    if general:
        file = out.with_name(f"{out.name}-general.toml")
        file.write_text(to_toml(resolve(make_config({}))), encoding="utf-8")
        fixed.insert(0, str(file))
    return ["tune", *fixed, "--trials", str(plan.trials), "--out", str(out)]


@contextmanager
def processes(logs: Path) -> Iterator[Any]:
    """Starts ``topshelf`` with one thread under a name, which is also that of its log; ends them all."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

    def start(name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        script = Path(sys.executable).with_name("topshelf")
        print(f"{name}: {shlex.join(['topshelf', *arguments])}", flush=True)
        with (logs / f"{name}.log").open("wb") as log:
            started[name] = subprocess.Popen([script, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environ)
        return started[name]

    try:
        yield start
    finally:
        for process in started.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def storage_of(out: Path) -> Iterator[Study]:
    """The study's storage, read while other processes work on it."""
    folder = StudyFolder(out)
    with open_study(folder_url(folder.database), folder.load()) as study:
        yield study


def is_finished(trial: FrozenTrial) -> bool:
    return trial.state.name in ("COMPLETE", "PRUNED")


def at_work(trials: list[FrozenTrial], pid: int, seconds: float) -> FrozenTrial | None:
    """The trial that a process has been running for so many seconds."""
    for trial in trials:
        mine = trial.state.name == "RUNNING" and trial.user_attrs.get(WORKER, {}).get("pid") == pid
        if mine and trial.datetime_start and (datetime.now() - trial.datetime_start).total_seconds() >= seconds:
            return trial
    return None


def kill_in_a_trial(process: subprocess.Popen[bytes], study: Study, after: int) -> int:
    """Kill a process in the middle of a trial once ``after`` trials are finished; the number of that trial.

    It is stopped first, so that the trial cannot end between the check and the kill.
    """
    while process.poll() is None:
        trials = study.get_trials(deepcopy=False)
        ended = [trial.duration.total_seconds() for trial in trials if is_finished(trial) and trial.duration]
        if len(ended) >= after and at_work(trials, process.pid, statistics.median(ended) / 3):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            if (trial := at_work(study.get_trials(deepcopy=False), process.pid, 0)) is not None:
                process.kill()
                process.wait()
                return trial.number
            process.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    raise RuntimeError(f"the process ended (code {process.returncode}) before it could be killed in a trial")


def run_study(plan: Plan, out: Path, arguments: list[str]) -> Row:
    """The study from its first command to its last trial, with one process killed and started again."""
    began = time.perf_counter()
    with processes(out.parent) as start:
        workers = {name: start(name, arguments) for name in ("one", "two")}
        while not StudyFolder(out).best.exists():  # then the storage is there too
            if all(worker.poll() is not None for worker in workers.values()):
                raise RuntimeError(f"no process is left, and no trial is complete; their logs are in {out.parent}")
            time.sleep(0.1)
        with storage_of(out) as study:
            killed = kill_in_a_trial(workers["two"], study, max(1, plan.trials // 3))
            finished = sum(map(is_finished, study.get_trials(deepcopy=False)))
        print(f"two: killed in trial {killed}; {finished} trials were finished", flush=True)
        workers["two-again"] = start("two-again", ["tune", "--resume", str(out)])
        codes = {name: worker.wait() for name, worker in workers.items()}
    seconds = round(time.perf_counter() - began, 1)
    names = {worker.pid: name for name, worker in workers.items()}
    with storage_of(out) as study:
        slots_of_budget = account(study.get_trials(deepcopy=False), plan.trials, names)
    facts = {"codes": codes, "killed_in": killed, "finished_when_killed": finished, "seconds": seconds}
    return facts | slots_of_budget


def account(trials: list[FrozenTrial], budget: int, names: dict[int, str]) -> Row:
    """The outcome of every slot of the budget; ``lost`` are those that did not end in exactly one trial."""
    rows = [_row(trial, names) for trial in queue.without_duplicates(trials)]
    ended = Counter(row["slot"] for row in rows if row["state"] in ("complete", "pruned"))
    return {
        "budget": budget,
        "states": dict(Counter(row["state"] for row in rows)),
        "lost": [slot for slot in range(budget) if ended[slot] != 1],
        "by_process": dict(Counter(row["process"] for row in rows if row["process"])),
        "trials": rows,
    }


def _row(trial: FrozenTrial, names: dict[int, str]) -> Row:
    known, result = trial.user_attrs, trial.user_attrs.get(RESULT, {})
    state = trial.state.name.lower()
    if state == "fail":
        state = "failed" if NOTE in known else "interrupted"
    return {
        "trial": trial.number,
        "slot": known[SLOT],
        "state": state,
        "process": names.get(known.get(WORKER, {}).get("pid")),
        "score": result.get("score"),
        "epoch": result.get("best_epoch"),
        "seconds": round(result.get("seconds", 0.0), 1),
        "settings": known.get(SETTINGS, {}),
    }


def configs(plan: Plan, out: Path) -> dict[str, RunConfig]:
    """What is compared, by label."""
    folder = StudyFolder(out)
    paper = merged(PAPER, {"train": {"epochs": plan.epochs}})
    return {
        FIRST: resolve(folder.load().config),
        BEST: make_config(read_config(folder.best)),
        PUBLISHED: resolve(assemble(data=plan.data, loss="slatk", k=20, more=merged(paper, PAIRS))),
        BY_USERS: resolve(assemble(data=plan.data, loss="slatk", k=20, more=paper)),
    }


def measure(task: tuple[str, RunConfig]) -> Row:
    """Validation NDCG@20 of a config with its seed's split."""
    label, config = task
    parts = Parts.of(config)
    result = Runner(parts).run(config)
    row = {"label": label, "seed": config.seed, "split": parts.fingerprint, "score": result.score}
    row |= {"epoch": result.best_epoch, "epochs": result.epochs, "seconds": round(result.seconds, 1)}
    print(label, config.seed, f"{result.score:.4f}", flush=True)
    return row


def compare(plan: Plan, out: Path) -> list[Row]:
    """Everything on the study's validation split and on others."""
    seeds, every = (SEED, *plan.other_seeds), configs(plan, out)
    tasks = [(label, config.model_copy(update={"seed": seed})) for seed in seeds for label, config in every.items()]
    rows = list(each(measure, tasks, 2))
    return sorted(rows, key=lambda row: (seeds.index(row["seed"]), list(every).index(row["label"])))


def table(rows: list[Row]) -> str:
    """One row per config: the study's split, then the mean of the others."""
    others = sorted({row["seed"] for row in rows} - {SEED})
    lines = []
    for label in dict.fromkeys(row["label"] for row in rows):
        own = {row["seed"]: row for row in rows if row["label"] == label}
        mean, here = statistics.mean(own[seed]["score"] for seed in others), own[SEED]
        lines.append([label, f"{here['score']:.4f}", f"{mean:.4f}", here["epoch"], here["seconds"]])
    heads = ("settings", f"validation {METRIC}", f"of splits {', '.join(map(str, others))}", "best epoch", "seconds")
    return table_of(heads, lines)


def verdict(study: Row, rows: list[Row]) -> str:
    score = {row["label"]: row["score"] for row in rows if row["seed"] == SEED}
    paper = max(score[PUBLISHED], score[BY_USERS])
    states = ", ".join(f"{count} {state}" for state, count in study["states"].items())
    shares = ", ".join(f"{name} {count}" for name, count in study["by_process"].items())
    return (
        f"budget {study['budget']}: {states}; lost: {study['lost'] or 'none'}; trials by process: {shares}; "
        f"{study['seconds']} s\nbest {score[BEST]:.4f}: {score[BEST] - score[FIRST]:+.4f} against the first trial, "
        f"{score[BEST] - paper:+.4f} against the better of the paper's"
    )


def main() -> None:
    benchmark = Benchmark(__spec__.name, __doc__)
    add = benchmark.parser.add_argument
    add("--from", dest="first", choices=("general", "shipped"), default="general")
    add("--trials", type=int, help="default: 30; at least 3")
    add("--set", dest="settings", action="append", default=[], help="of topshelf tune; repeatable")
    add("--range", dest="ranges", action="append", default=[], help="of topshelf tune; repeatable")
    add("--out", type=Path, help="a new folder for the study, its logs beside it; default: a temporary one")
    options = benchmark.parse()
    plan = QUICK if options.quick else Plan()
    plan = replace(
        plan,
        trials=options.trials or plan.trials,
        settings=(*plan.settings, *options.settings),
        ranges=tuple(options.ranges),
    )
    out = (options.out or Path(tempfile.mkdtemp(prefix="topshelf-tuning-")) / "study").resolve()
    if out.exists():
        benchmark.parser.error(f"--out must be a new folder, got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    study = run_study(plan, out, command(plan, out, general=options.first == "general"))
    rows = compare(plan, out)
    print(table(rows), verdict(study, rows), f"study: {out}", sep="\n")
    folder = StudyFolder(out)
    split = folder.load_parts(folder.load().config).fingerprint
    benchmark.write(data=plan.data, first=options.first, split=split, study=study, rows=rows)
    if study["lost"] or any(code for name, code in study["codes"].items() if name != "two"):
        sys.exit(f"trials were lost, or a process failed: {study['lost']}, {study['codes']}; logs in {out.parent}")


if __name__ == "__main__":
    main()
