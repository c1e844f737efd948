"""Texts that Hypothesis makes up."""

from hypothesis import strategies as st

CHARACTERS = st.characters(exclude_categories=["Cs"])
"""All that UTF-8 has. By its name each process would find out which these are, for 1.5 s."""
