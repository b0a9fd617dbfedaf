"""A page of HTML with tables and plots, in a single file that asks the network for nothing."""

from topshelf.page.builder import Cell, Page

__all__ = ["Cell", "Page"]
