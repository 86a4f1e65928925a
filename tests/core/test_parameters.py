"""How a plug-in says which of its parameters is wrong."""

from __future__ import annotations

import pickle

from autoscaler.core.parameters import ParameterError


def test_a_parameter_error_survives_being_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(ParameterError("size", "must be 1")))  # noqa: S301 - our own bytes
    assert (error.name, error.message, str(error)) == ("size", "must be 1", "size: must be 1")
