"""Programs that are run in sandboxes, on any Python from 3.9 on: each prints facts as JSON, and judges nothing."""
