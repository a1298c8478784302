"""Tools of other systems by their own names, arguments and results, for prompts and clients that know those. Opt-in."""
