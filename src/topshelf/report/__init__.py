"""One page of HTML on one or several runs: what was trained on what, how good it is, and what people get."""

from topshelf.report.build import report_page, write_report

__all__ = ["report_page", "write_report"]
