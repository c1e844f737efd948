"""What Prometheus and autoscalers ask of a fleet, as they want it.

``exposition``  the metrics of frontiers, in Prometheus' text format
``families``    their names, labels and meanings, made of what `Frontier` says
``exporter``    answers by HTTP, and says how many workers would have work
"""
