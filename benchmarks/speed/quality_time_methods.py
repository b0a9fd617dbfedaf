"""The methods that benchmarks/speed/quality_time.py measures, and the clock and the curve of a run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import product

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import ELECTRONIC, GOWALLA, HEALTH, RESULTS, Row, held
from benchmarks.trained import PAPER, trainer, vectors
from topshelf.config import assemble
from topshelf.data import load_split
from topshelf.errors import ConfigError
from topshelf.evaluation import ndcg
from topshelf.models import Model
from topshelf.queries import Context
from topshelf.ragged import Ragged, merge
from topshelf.ranking import QueryVectors
from topshelf.thresholds import exact_thresholds
from topshelf.training.batches import stream
from topshelf.training.build import build_model, resolve
from topshelf.training.trainer import Trainer

K = 20
CAPS = {HEALTH: 60, ELECTRONIC: 30, GOWALLA: 30}  # seconds of the plain reference
ITERATIONS = 30  # of iALS
FACTORS = {"ials": 64, "ials256": 256}
# The best regularization of iALS grows with alpha, so the grid is one of their ratio.
ALPHAS, RATIOS = (2.0, 5.0, 15.0, 50.0, 150.0, 500.0), (1.5, 3.0, 6.0, 12.0)
L2 = (30.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0, 4000.0)
RESULT = RESULTS / "quality_time.json"


class Clock:
    """Seconds of training, of the wall clock and of the processor; it stops inside ``paused``."""

    def __init__(self) -> None:
        self._before, self._started = (0.0, 0.0), self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def _both(self) -> tuple[float, float]:
        (wall, cpu), (wall_started, cpu_started) = self._now(), self._started
        return self._before[0] + wall - wall_started, self._before[1] + cpu - cpu_started

    @property
    def seconds(self) -> float:
        return self._both()[0]

    @property
    def cpu_seconds(self) -> float:
        """Far from the wall clock times the number of cores: the run was disturbed, or is not parallel."""
        return self._both()[1]

    @contextmanager
    def paused(self) -> Iterator[float]:
        self._before = self._both()
        yield self._before[0]
        self._started = self._now()


class Curve:
    """The quality of a run at chosen moments; measuring it does not count as training time."""

    def __init__(self, data: str, seed: int) -> None:
        self.split = load_split(data, seed=seed).split
        parts = (self.split.train, self.split.valid, self.split.test)
        self.train, self.valid, self.test = (part.ragged() for part in parts)
        self.seen = merge(self.train, self.valid)
        self.points: list[Row] = []
        self.start()

    def start(self) -> None:
        self.clock = Clock()

    def validate(self, queries: QueryVectors, items: Tensor) -> float:
        with self.clock.paused(), torch.no_grad():
            return ndcg(queries, items, self.valid, self.train, K)

    def add(self, epoch: float, queries: QueryVectors, items: Tensor, valid: float | None) -> None:
        """Test NDCG@20 of the ``standard`` protocol: train and validation masked, users without test items skipped."""
        with self.clock.paused() as seconds, torch.no_grad():
            test = ndcg(queries, items, self.test, self.seen, K)
        point = {"seconds": round(seconds, 4), "epoch": round(epoch, 3), "test": round(test, 6)}
        self.points.append(point if valid is None else {**point, "valid": round(valid, 6)})

    def measure(self, epoch: float, queries: QueryVectors, items: Tensor) -> None:
        self.add(epoch, queries, items, self.validate(queries, items))

    def outcome(self, settings: Row) -> Row:
        spent = {"seconds": round(self.clock.seconds, 4), "cpu_seconds": round(self.clock.cpu_seconds, 4)}
        return {"settings": settings, **spent, "curve": self.points}


def is_due(epoch: int) -> bool:
    """Closely at first, then every fifth epoch."""
    return epoch <= 10 or epoch % 5 == 0


class Watching:
    """Adds the trainer's epochs to a curve: the first ten, and those it validates."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve

    def on_step(self, trainer: Trainer) -> None:
        pass

    def on_epoch(self, trainer: Trainer, record: Row) -> None:
        if "valid" in record or record["epoch"] <= 10:
            self.curve.add(record["epoch"], *vectors(trainer.model), record.get("valid"))

    def wants_to_stop(self) -> bool:
        return False


def start_of(data: str, seed: int, n_users: int, n_items: int) -> Model:
    """The first values of MF's tables, as ``topshelf train`` makes them from the seed."""
    torch.manual_seed(stream(seed, 3).initial_seed())
    return build_model(resolve(assemble(data=data, model="mf", loss="slatk", k=K)), n_users, n_items)


def topshelf(data: str, seed: int, quick: bool) -> Row:
    more = {"train": {"epochs": 10}} if quick else {}
    config = resolve(assemble(data=data, model="mf", loss="slatk", k=K, seed=seed, more=more))
    curve = Curve(data, seed)
    curve.start()
    trained = trainer(config, curve.train, curve.split.n_items, lambda model: curve.validate(*vectors(model)))
    trained.run(Watching(curve))
    return curve.outcome(config.model_dump(mode="json"))


def winner(data: str, method: str) -> dict[str, float]:
    """The best settings of a committed ``--search``; EASE without one has the shipped ones."""
    searches = held(RESULT, "searches")
    if method in searches.get(data, {}):
        return dict(searches[data][method]["best"])
    if method == "ease":
        return {}
    raise ConfigError(f"{RESULT} has no search of {method} on {data}; run --search --data {data} --methods {method}")


def matrix_of(positives: Ragged, n_items: int) -> scipy.sparse.csr_matrix:
    ones = np.ones(positives.indices.numel(), dtype=np.float32)
    parts = (ones, positives.indices.numpy(), positives.indptr.numpy())
    return scipy.sparse.csr_matrix(parts, shape=(len(positives), n_items))


def fit_ials(
    curve: Curve, settings: dict[str, float], seed: int, iterations: int, watch: Callable[[int, Tensor, Tensor], None]
) -> None:
    """Implicit's own ``fit``; ``watch(iteration, users, items)`` is called after every iteration."""
    try:
        from implicit.als import AlternatingLeastSquares
    except ImportError as error:
        raise ConfigError("iALS needs the package implicit: pip install implicit==0.7.3") from error
    curve.start()
    model = AlternatingLeastSquares(**settings, iterations=iterations, random_state=seed)

    def callback(iteration: int, *_: object) -> None:
        watch(iteration + 1, torch.from_numpy(model.user_factors), torch.from_numpy(model.item_factors))

    model.fit(matrix_of(curve.train, curve.split.n_items), show_progress=False, callback=callback)


def ials(data: str, seed: int, quick: bool, method: str = "ials") -> Row:
    curve = Curve(data, seed)
    settings = {"factors": FACTORS[method], **winner(data, "ials")}
    iterations = 3 if quick else ITERATIONS

    def watch(iteration: int, users: Tensor, items: Tensor) -> None:
        if is_due(iteration):
            curve.measure(iteration, users, items)

    fit_ials(curve, settings, seed, iterations, watch)
    return curve.outcome({**settings, "iterations": iterations, "implicit": metadata.version("implicit")})


def ials256(data: str, seed: int, quick: bool) -> Row:
    return ials(data, seed, quick, "ials256")


def ease(data: str, seed: int, quick: bool) -> Row:  # noqa: ARG001  one fit is quick enough
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # refuse what this machine cannot hold
    more = {"model": {"memory": memory, **winner(data, "ease")}}
    config = resolve(assemble(data=data, model="ease", seed=seed, more=more))
    settings = config.model.settings
    curve = Curve(data, seed)
    curve.start()
    try:
        model = build_model(config, curve.split.n_users, curve.split.n_items)
    except ConfigError as error:
        return {"settings": settings, "refused": str(error), "seconds": 0.0, "curve": []}
    model.fit(Context(curve.train, curve.split.n_items))
    curve.measure(1, *vectors(model))
    return curve.outcome(settings)


def plain_loss(
    users: Tensor,
    items: Tensor,
    user: Tensor,
    item: Tensor,
    negative: Tensor,
    threshold: Tensor,
    *,
    tau: float,
    tau_weight: float,
) -> Tensor:
    """SL@K of B pairs with their own N negatives, gathered; users (U, d), items (I, d), negative (B, N)."""
    query = F.normalize(users[user], dim=1)
    positive = (query * F.normalize(items[item], dim=1)).sum(1)
    scores = (query.unsqueeze(1) * F.normalize(items[negative], dim=2)).sum(2)
    weight = torch.sigmoid((positive - threshold[user]) / tau_weight)
    return (weight * ((scores - positive.unsqueeze(1)) / tau).logsumexp(1)).mean()


def plain(data: str, seed: int, quick: bool) -> Row:
    rate, tau, tau_weight, every = PAPER[data]
    cap, batch, n_negatives = CAPS[data], 1024, 1000
    curve = Curve(data, seed)
    split = curve.split
    curve.start()
    generator = stream(seed)
    users, items = (table for table in start_of(data, seed, split.n_users, split.n_items).parameters())
    optimizer = torch.optim.Adam([users, items], lr=rate)
    threshold = torch.zeros(split.n_users)
    owner, item = curve.train.owner(), curve.train.indices
    steps = -(-len(owner) // batch)
    done, due = 0, 5.0  # seconds of the next point

    def encode() -> tuple[Tensor, Tensor]:
        return F.normalize(users.detach(), dim=1), F.normalize(items.detach(), dim=1)

    while curve.clock.seconds < cap and not (quick and done):
        if (done // steps + 1) % every == 0:
            threshold = exact_thresholds(*encode(), K)
        for pairs in torch.randperm(len(owner), generator=generator).split(batch):
            negative = torch.randint(split.n_items, (len(pairs), n_negatives), generator=generator)
            optimizer.zero_grad()
            plain_loss(
                users, items, owner[pairs], item[pairs], negative, threshold, tau=tau, tau_weight=tau_weight
            ).backward()
            optimizer.step()
            done += 1
            if (quick and done == 2) or curve.clock.seconds >= cap:
                break
            if curve.clock.seconds >= due:
                curve.measure(done / steps, *encode())
                due = max(due + 5, 1.25 * due)
    curve.measure(done / steps, *encode())
    names = ("learning_rate", "tau", "tau_weight", "every", "cap_seconds")
    return curve.outcome(dict(zip(names, (*PAPER[data], cap), strict=True)))


METHODS: dict[str, Callable[[str, int, bool], Row]] = {
    "topshelf": topshelf,
    "ials": ials,
    "ials256": ials256,
    "ease": ease,
    "plain": plain,
}


def search(data: str, method: str) -> Row:
    """Validation NDCG@20 of every setting of the grid: its best iteration, mean over the validation splits."""
    seeds = (10,) if method == "ease" or data == "gowalla" else (10, 11, 12)
    trials: list[Row] = []
    for settings in grid(data, method):
        scores = [trial(data, method, settings, seed) for seed in seeds]
        trials.append({"settings": settings, "valid": round(statistics.mean(scores), 6)})
        print(f"| {data} | {method} | {settings} | {trials[-1]['valid']:.4f} |", flush=True)
    return {"seeds": seeds, "best": max(trials, key=lambda row: row["valid"])["settings"], "trials": trials}


def grid(data: str, method: str) -> list[dict[str, float]]:
    """EASE has one setting and iALS two; Gowalla, where a trial takes long, has the middle of the grid."""
    if method == "ease":
        return [{"l2": l2} for l2 in L2]
    pairs = product(ALPHAS[2:5], RATIOS[:3]) if data == "gowalla" else product(ALPHAS, RATIOS)
    return [{"alpha": alpha, "regularization": alpha * ratio} for alpha, ratio in pairs]


def trial(data: str, method: str, settings: dict[str, float], seed: int) -> float:
    curve = Curve(data, seed)
    scores = []

    def watch(iteration: int, users: Tensor, items: Tensor) -> None:
        if iteration % 5 == 0:
            scores.append(curve.validate(users, items))

    if method == "ease":
        model = build_model(
            resolve(assemble(data=data, model="ease", more={"model": settings})),
            curve.split.n_users,
            curve.split.n_items,
        )
        model.fit(Context(curve.train, curve.split.n_items))
        return curve.validate(*vectors(model))
    fit_ials(curve, {"factors": FACTORS["ials"], **settings}, seed, ITERATIONS, watch)
    return max(scores)
