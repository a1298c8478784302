"""Runs from request to result: contexts, code, who gets the output, what is remembered. `processes` starts them."""
