"""A comparison of your own: a plan in ten lines, run and reported from Python.

    python examples/bench.py [FOLDER]

On the command line: topshelf bench run plan.toml --out FOLDER, then topshelf bench report plan.toml --out FOLDER.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from topshelf.bench import Report, of_plan, read_plan, run
from topshelf.bench.folder import BenchFolder

PLAN = """
title = "SL@10 beside softmax and two classics, on generated data"
metrics = ["recall@10", "ndcg@10"]
k = 10
seeds = [0, 1]
ours = "SL@10"
settings = { train = { epochs = 5 }, evaluate = { auc = false } }
data = [{ label = "generated", source = "synthetic" }]
method = [
  { label = "softmax", settings = { loss = { name = "softmax" } } },
  { label = "SL@10", settings = { loss = { name = "slatk" } } },
  { label = "EASE", settings = { model = { name = "ease" } } },
  { label = "popularity", settings = { model = { name = "popularity" } } },
]
"""


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    name, plan = read_plan(folder / "plan.toml")
    run(plan, folder / "bench")
    report = Report.of(of_plan(name, plan, BenchFolder.open(folder / "bench")))
    report.write(folder / "report")
    print(report.markdown([]))
    print(f"page: {folder / 'report' / 'report.html'}")


if __name__ == "__main__":  # cells run in processes of their own, which import this file
    main()
