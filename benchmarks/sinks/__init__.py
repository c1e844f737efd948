"""Ways into a database."""
