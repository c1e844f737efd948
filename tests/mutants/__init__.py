"""Small faults that the tests must find: ``make mutants``."""
