"""Floor 1: everything that runs on a device. Imports numpy, msgpack, msgspec and aiomqtt, nothing heavier."""
