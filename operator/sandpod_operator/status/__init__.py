"""Pure: what the status of a Sandbox or a pool says. What is done about it belongs in `planning`."""
