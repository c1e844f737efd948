"""Downloader middlewares: what keeps a fleet polite, and retries that wait in Redis."""
