"""A spider of each kind, and the pages that it crawls, beside each other."""
