"""Floor 3: emulated fleets, links, data, studies and the `gca` command."""
