"""The kubectl plugin, which calls kubectl alone. Nothing that operator or gateway need belongs here."""
