"""A module that run folders and studies name. It must never be imported."""

raise SystemExit("a module was imported because a file names it")
