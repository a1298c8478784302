"""The values that all other folders share: what is observed, and what a plan asks for. No decision belongs here."""
