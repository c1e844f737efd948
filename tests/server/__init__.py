"""How a server is opened, waited for, refused; and the embedded one."""
