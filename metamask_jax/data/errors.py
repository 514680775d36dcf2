"""The one exception of the data package."""


class DataError(ValueError):
    """Data that is missing, damaged or asked for wrongly; the message is one sentence fit for the user."""
