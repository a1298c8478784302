"""The program inside every sandbox, standard library only. The gateway imports its wire format, `protocol`."""
