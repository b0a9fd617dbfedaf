"""topshelf: recommenders trained for the first K places of the list."""
