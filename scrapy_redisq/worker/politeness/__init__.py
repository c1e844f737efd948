"""One worker's part in the limits and the back-off of hosts.

``gate``          what each download passes
``turns``         waits until a slot's limits allow a download
``allowance``     what the worker may do with one slot
``judge``         whether the end of a download means trouble for its slot
``retry_pauses``  how long a retry waits; ``http_headers`` what an answer says of that
"""
