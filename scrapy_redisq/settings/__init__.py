"""The settings: declared, checked, and read once."""
