"""What is written down of a run, in `study.sqlite` and in files beside it, and what can be read from it."""
