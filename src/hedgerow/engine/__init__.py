"""The decode loop and the life of a request."""
