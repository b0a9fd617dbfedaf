"""A loss, a model, negatives and a threshold estimator for topshelf that live outside of it."""
