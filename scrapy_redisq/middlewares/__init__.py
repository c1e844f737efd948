"""Downloader middlewares: robots.txt, back-off, and retries that wait in Redis."""
