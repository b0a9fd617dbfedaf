"""One question each: what was tried, and why a default is what it is."""
