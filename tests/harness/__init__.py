"""Crawls of the project in tests/project, commands, workers of the protocol, and its model."""
