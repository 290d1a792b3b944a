"""Local training and inference in C, optional: where it was not built, the numpy trainer does the same work."""
