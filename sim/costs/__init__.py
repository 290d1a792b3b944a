"""What a study costs: planned before it runs (`plan`), and counted after (`spent`): bytes, seconds, joules, money."""
