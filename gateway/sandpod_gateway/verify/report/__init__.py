"""How a run's report is shown: `text` and `html` for people, `machine` as JSON and SARIF for programs."""
