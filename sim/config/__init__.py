"""A study as a person writes it, checked and spelled out: every choice, and the links and boards that it names."""
