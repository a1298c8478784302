"""Traces and the facts of log lines, for operator and gateway alike.

OpenTelemetry is loaded by `export` and `recorder` alone, and those by `tracing.start` alone: a process without traces
pays for none of it. What a span and a line may say of a call is decided here.
"""
