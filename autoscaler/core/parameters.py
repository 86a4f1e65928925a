"""How a plug-in reports which of its parameters is wrong."""

from __future__ import annotations


class ParameterError(ValueError):
    """A parameter of a plug-in or of a configuration section has a value that it cannot have.

    Attributes:
        name: the parameter, as it is called in the configuration.
        message: what is wrong and what was expected, without the name, like `must be above 0s, not -5s`.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message

    def __reduce__(self) -> tuple[type[ParameterError], tuple[str, str]]:
        """Pickle by both arguments: exceptions are sent between processes."""
        return type(self), (self.name, self.message)
