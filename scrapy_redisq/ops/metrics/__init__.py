"""What Prometheus and autoscalers ask of a fleet, as they want it.

``exposition``  the metrics of frontiers, in Prometheus' text format
``families``    their names, labels and meanings, made of what `Frontier` says
``scale``       how many workers would have work, as JSON
``exporter``    an HTTP server that answers with both
"""

from scrapy_redisq.ops.metrics.exposition import CONTENT_TYPE, Exposition, metrics
from scrapy_redisq.ops.metrics.scale import scale

__all__ = ["CONTENT_TYPE", "Exposition", "metrics", "scale"]
