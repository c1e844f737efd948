"""Items as Parquet files.

``pipeline`` is the item pipeline, ``arrow`` makes tables of items, ``folders`` puts files where
they belong so that nobody sees half of one.
"""
