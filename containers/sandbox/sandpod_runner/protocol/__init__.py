"""The wire format between gateway and runner and its errors: the part that the gateway imports too. No I/O."""
