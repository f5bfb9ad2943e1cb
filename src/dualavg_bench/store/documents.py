"""JSON documents with a schema: the base of results and summaries, and how they are read and written."""

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dualavg_bench.recipe.settings import Point
from dualavg_bench.store.files import StoreError, write_atomically

FORMAT = 1

Count = Annotated[int, Field(ge=0)]
Hash = str  # the name of a run's folder, see `results.spec_hash`


class Model(BaseModel):
    """A part of a document: immutable, no unknown fields, no conversion of types, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Setting(Model):
    """A part that names a point of a grid; its fields are `recipe.settings.AXES`."""

    lr: float
    weight_decay: float
    schedule: str

    @property
    def point(self) -> Point:
        """The point of the grid."""
        return Point(self.lr, self.weight_decay, self.schedule)


class Document(Model):
    """A whole JSON file."""

    NAME: ClassVar[str]  # what messages call it
    REMEDY: ClassVar[str]  # what to do about a damaged one

    format: int = FORMAT

    @field_validator("format")
    @classmethod
    def _check_format(cls, value: int) -> int:
        if value != FORMAT:
            raise ValueError(f"this version of dualavg reads format {FORMAT}")
        return value


D = TypeVar("D", bound=Document)


def write_document(path: Path, document: Document) -> None:
    """Write a document as JSON with sorted keys."""
    text = json.dumps(document.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def read_document(path: Path, kind: type[D]) -> D:
    """Read and validate a document.

    Raises:
        StoreError: one line with the file, the field and what to do.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise StoreError(f"There is no {kind.NAME} at {path}.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}).") from error
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise StoreError(f"{path} {_problem(data, kind, error)}.") from None


def has_field(path: Path, name: str) -> bool:
    """Return whether a file is a JSON object with this field, to tell one kind of document from another."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        return False  # reading the document reports it
    return isinstance(content, dict) and name in content


def _problem(data: bytes, kind: type[Document], error: ValidationError) -> str:
    """Return what is wrong with the content of a file and what to do about it."""
    try:
        content = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        return f"is not a complete {kind.NAME}: {kind.REMEDY}"
    version = content.get("format") if isinstance(content, dict) else None
    if not isinstance(version, int):
        return f"is not a {kind.NAME} of dualavg: move it away"
    if version > FORMAT:
        return (
            f"was written by a newer version of dualavg (format {version}, this one reads {FORMAT}): "
            "update dualavg, or use another folder"
        )
    return f"is damaged ({_first_error(error)}): {kind.REMEDY}"


def _first_error(error: ValidationError) -> str:
    """Return the field of the first error, what was expected and what was found, on one line."""
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":  # from a validator of ours
        message = str(first["ctx"]["error"])
        return f"{field}: {message}" if field else message
    message = first["msg"].removeprefix("Input ")
    message = f"{message[0].lower()}{message[1:]}"
    if first["type"] in ("missing", "extra_forbidden"):
        return f"{field}: {message}"
    return f"{field}: {message}, got {_shortened(first['input'])}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}\N{HORIZONTAL ELLIPSIS}"
