"""What a split of a data set holds in memory, for the fingerprint: all of it, without reading an example.

Looked at are the attributes of the source, and of the data sets inside of it: tensors, arrays and tables,
lists and dictionaries of them, and lists of plain values with at least as many as there are examples (labels,
texts, names of files). Shorter ones may be a source's own notes of what it was asked for. Of what is larger
than `WHOLE` bytes, blocks are taken that are evenly spread.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

WHOLE = 2**28  # bytes of an array that are hashed without leaving some out: 0.2 s
BLOCK, BLOCKS = 2**14, 2**12  # of a larger one: 64 MB
VALUES = 250_000  # of a longer list of plain values, at most as many are taken
AT_ONCE = 10_000  # tensors of a list, which are joined to be hashed
DEPTH = 4  # of data sets in data sets
PLAIN = (str, bytes, int, float, bool, Path, type(None))


def add_held(whole: Any, source: Any, known: dict[int, bytes]) -> None:
    """Add to a hash what a source holds; `known` has what was seen before, for splits share data sets."""
    for name, value in sorted(_attributes(source)):
        digest = _digest(value, _length(source), known, DEPTH)
        if digest is not None:
            whole.update(name.encode() + digest)


def add_array(whole: Any, array: np.ndarray[Any, Any]) -> None:
    """Add an array, or blocks of a large one."""
    whole.update(f"{array.dtype} {array.shape}".encode())
    if array.dtype.hasobject:
        whole.update(_plain(array.ravel().tolist()) or b"")
    elif array.nbytes <= WHOLE:
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b"")
    else:
        flat = array.ravel(order="K")  # a view, unless it is part of another
        size = max(1, BLOCK // array.itemsize)
        for start in np.linspace(0, flat.size - size, BLOCKS).astype(np.int64).tolist():
            whole.update(np.ascontiguousarray(flat[start : start + size]).view(np.uint8).data)


def add_tensor(whole: Any, tensor: torch.Tensor) -> None:
    """Add a tensor, as an array of bytes: numpy does not have all of torch's types."""
    dense = tensor.detach()
    dense = (dense.to_dense() if dense.layout != torch.strided else dense).resolve_conj().resolve_neg()
    whole.update(f"{dense.dtype} {tuple(dense.shape)}".encode())
    if dense.numel():
        add_array(whole, dense.cpu().contiguous().flatten().view(torch.uint8).numpy())


def _attributes(source: Any) -> Iterator[tuple[str, Any]]:
    slots = (name for kind in type(source).__mro__ for name in getattr(kind, "__slots__", ()))
    yield from {**{s: getattr(source, s, None) for s in slots}, **getattr(source, "__dict__", {})}.items()


def _length(source: Any) -> int:
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return 0


def _digest(value: Any, length: int, known: dict[int, bytes], depth: int) -> bytes | None:
    """Return the hash of a value that is data, or None if it is none."""
    if id(value) in known:
        return known[id(value)]
    whole, found = hashlib.sha256(), True
    if isinstance(value, torch.Tensor):
        add_tensor(whole, value)
    elif isinstance(value, np.ndarray):
        add_array(whole, value)
    elif type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "to_numpy"):
        found = _add_table(whole, value)
    elif isinstance(value, list | tuple | dict):
        found = _add_collection(whole, value, length, known, depth)
    elif depth and (hasattr(value, "__getitem__") or hasattr(value, "batch")):  # a data set in a source
        found = not isinstance(value, PLAIN)
        parts = sorted(_attributes(value), key=lambda item: item[0]) if found else []
        digests = ((name, _digest(part, _length(value), known, depth - 1)) for name, part in parts)
        whole.update(b"".join(name.encode() + digest for name, digest in digests if digest is not None))
    else:
        found = False
    if not found:
        return None
    known[id(value)] = whole.digest()
    return known[id(value)]


def _add_collection(whole: Any, value: Any, length: int, known: dict[int, bytes], depth: int) -> bool:
    """Add a list of plain values that is long enough, or a collection of nothing but data."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):  # by number: more of a cache
            return False
        whole.update(repr(list(value)).encode())
        value = list(value.values())
    elif len(value) >= max(1, length) and (text := _plain(value)) is not None:
        whole.update(text)
        return True
    if not value or not depth or isinstance(value[0], PLAIN):
        return False
    kinds = {(part.dtype, part.layout) if isinstance(part, torch.Tensor) else None for part in value}
    if len(kinds) == 1 and (None not in kinds) and value[0].layout == torch.strided:
        _add_tensors(whole, value)
        return True
    digests = [_digest(part, length, known, depth - 1) for part in value]
    whole.update(b"".join(digest for digest in digests if digest is not None))
    return None not in digests


def _add_tensors(whole: Any, tensors: list[torch.Tensor]) -> None:
    """Add tensors of one kind; many are small, and one by one they would take long."""
    whole.update(repr([tuple(tensor.shape) for tensor in tensors]).encode())
    for start in range(0, len(tensors), AT_ONCE):
        add_tensor(whole, torch.cat([part.detach().flatten() for part in tensors[start : start + AT_ONCE]]))


def _plain(values: Any) -> bytes | None:
    """Return a list of plain values, or of such lists, as bytes; None if there is anything else in it."""
    some = values if len(values) <= VALUES else values[:: -(-len(values) // VALUES)]
    rows = [value if isinstance(value, list | tuple) else (value,) for value in some]
    if not all(isinstance(part, PLAIN) for row in rows for part in row):
        return None
    paths = [i for i, part in enumerate(rows[0]) if _is_path(part)] if rows else []
    if paths:  # where a folder lies changes nothing
        named = [str(part).rpartition(os.sep)[2] for row in rows for i, part in enumerate(row) if i in paths]
        rows = [[part for i, part in enumerate(row) if i not in paths] for row in rows]
        return f"{len(values)} {named!r} {rows!r}".encode("utf-8", "surrogatepass")
    return f"{len(values)} {rows!r}".encode("utf-8", "surrogatepass")


def _is_path(value: Any) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and os.sep in value and os.path.exists(value))  # noqa: PTH110


def _add_table(whole: Any, table: Any) -> bool:
    from pandas.util import hash_pandas_object

    try:
        whole.update(repr(list(getattr(table, "columns", ()))).encode())
        add_array(whole, hash_pandas_object(table).to_numpy())
    except (TypeError, ValueError):  # of objects that have no hash
        return False
    return True
