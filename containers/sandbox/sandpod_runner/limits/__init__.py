"""What a sandbox may use and can reach, as seen from inside. It measures; `runs` decides which run ends."""
