"""topshelf: recommenders trained for the first K places of the list."""

__version__ = "0.1.0"
