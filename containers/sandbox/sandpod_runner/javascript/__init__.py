"""JavaScript contexts under the image's Python: the helper of Node, and what runs in Node. Nobody trusts them."""
