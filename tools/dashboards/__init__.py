"""The chart's Grafana dashboards: what is on them, and how a panel is made. `tools/generate.py` writes them as JSON."""
