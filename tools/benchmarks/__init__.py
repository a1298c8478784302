"""The results of a benchmark, and the page that shows them.

Here belong the file that it writes (`results`) and what is made of it: `page`, the parts of docs/benchmarks.md,
and `charts`, its pictures. All of it is pure: tests/bench measures, and `tools/pages.py` writes the page.
"""
