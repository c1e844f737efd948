"""What needs no server and no process."""
