"""Items into a database.

Layers, top to bottom; imports point down only::

    pipeline                     the item pipeline: rows in a thread
    tables                       the table of each class of items
    plans, mapping, schema       items to values; tables for classes; tables made and compared
    keys                         which columns are unique, and which the database fills
    options, fields, conversion  REDISQ_TABLES; fields of classes; values that stay exact
    upsert                       records into tables, in the dialect of the database
    server, engine, errors, url  one connection that comes back, and what its errors mean
    columns                      types of columns
"""
