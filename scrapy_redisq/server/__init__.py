"""The Redis server: how it is reached, what it must be, and one of our own."""
