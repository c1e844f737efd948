"""One worker's part in the limits and the back-off of hosts.

``gate``    what each download passes
``turns``   what the worker may do with each slot, and who waits until its limits allow a download
``judge``   whether the end of a download means trouble for its slot
``retry_pause``  how long a retry waits, and what an answer says of that
"""
