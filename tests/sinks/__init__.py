"""What becomes of items, in real databases, files and servers."""
