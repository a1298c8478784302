"""The models that calls return, and the error codes. No behaviour belongs here, and no import of another package."""
