"""The operator: keeps pods, policies and pools as the resources say."""
