from hypothesis import settings

# The same examples in every run, and no limit by the clock of a busy machine.
settings.register_profile("api", deadline=None, derandomize=True)
settings.load_profile("api")
