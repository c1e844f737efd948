"""How fast, how large, how polite: see README.md."""

COMMANDS = {
    "crawl": "pages per second of one worker, beside Scrapy in memory and scrapy-redis",
    "fleet": "1 to 8 workers on one frontier, and how soon they end",
    "cluster": "one worker on clusters, near and far; what they cost Redis",
    "polite": "limits of fifty hosts that a fleet keeps, by their log",
    "memory": "bytes per request and per URL",
    "sink": "rows per second into databases, and what it costs a crawl",
}
"""Command, which is the name of its module and its result -> what it measures."""
