"""Python programs and contexts in their own process, under the image's own Python. Nobody trusts what is here."""
