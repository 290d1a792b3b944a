"""Many studies as one: a grid of cells, each a study of its own, run once and kept."""
