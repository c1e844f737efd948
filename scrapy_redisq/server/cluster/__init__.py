"""A cluster: which node has which hash slot, and clients that send commands there.

``hash_slots`` keeps the map and says what to send to which node, without any network; ``clients``
send it.
"""

from __future__ import annotations

from scrapy_redisq.server.cluster.clients import AsyncCluster, Cluster, ClusterServer, nodes_of

__all__ = ["AsyncCluster", "Cluster", "ClusterServer", "nodes_of"]
