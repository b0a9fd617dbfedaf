"""How good the lists are: losses, models and settings compared."""
