"""Programs that run inside local sandboxes, or on the way into one. They never import the gateway."""
