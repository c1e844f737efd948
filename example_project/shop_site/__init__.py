"""The web site that the example crawls: a bookshop made up from page numbers, and its server."""
