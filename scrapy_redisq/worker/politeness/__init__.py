"""One worker's part in the limits and the back-off of hosts."""
