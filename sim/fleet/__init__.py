"""A federation in one process: devices as coroutines over a network in memory, in real or in virtual time."""
