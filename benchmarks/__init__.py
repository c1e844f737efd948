"""How fast, how large, how polite: see README.md."""

COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "crawl": (
        ("crawl",),
        "pages per second of one worker, beside Scrapy in memory and scrapy-redis",
    ),
    "fleet": (
        ("fleet", "latency"),
        "1 to 8 workers on one frontier; from a push to its download, from the last page to the "
        "end",
    ),
    "cluster": (
        ("cluster",),
        "one worker on clusters, near and far; what they cost Redis",
    ),
    "polite": (("polite",), "limits of fifty hosts that a fleet keeps, by their log"),
    "memory": (("memory",), "bytes per request and per URL"),
    "sink": (("sink",), "rows per second into databases, and what it costs a crawl"),
}
"""Command -> the modules whose results it is made of, and what it measures."""
