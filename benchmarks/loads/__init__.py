"""The frontier, its parts and its peers without a crawl."""
