"""Emulation in real time: N device processes, a process that is their network, and the server between them."""
