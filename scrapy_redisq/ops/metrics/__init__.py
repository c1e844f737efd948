"""Figures of a fleet for Prometheus and autoscalers.

``exposition``  the metrics of frontiers, in Prometheus' text format
``families``    their names, labels and meanings, and values from `Frontier`
``exporter``    answers by HTTP, and says how many workers would have work
"""
