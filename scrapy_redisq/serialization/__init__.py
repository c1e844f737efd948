"""Requests as bytes, and back: nothing is imported or executed because Redis says so."""
