"""How a run's report is shown: `text` and `html` for people, `machine` as JSON and SARIF for programs.

Order, words and escaping belong here. What was seen, and whether it is good, has been decided before.
"""
