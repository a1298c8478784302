"""Pure: the objects that the operator writes, each whole, and what objects of others mean for them."""
