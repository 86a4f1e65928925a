"""The base of the models of answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Base of the models of answers: only the fields that are used are read, and those strictly."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)
