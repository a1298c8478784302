"""Tests of the runner. They share what they need to be started once; it ends with the last of them."""
