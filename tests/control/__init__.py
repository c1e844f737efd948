"""The view from outside: pushing, looking on, ruling, and the command line."""
