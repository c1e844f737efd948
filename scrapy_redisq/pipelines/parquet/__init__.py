"""Items as Parquet files.

``pipeline`` is the item pipeline, ``arrow`` makes tables of items.
"""
