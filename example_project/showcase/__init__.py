"""The parts of ``demo.py``: worker processes, what is seen of the crawl, display and verdict."""
