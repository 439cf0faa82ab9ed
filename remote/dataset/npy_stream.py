"""A .npy file of known shape, written front to back, with its digest, in little memory."""

import hashlib
import math
from pathlib import Path
from types import TracebackType

import numpy as np


class NpyStream:
    """The same bytes as `np.save` of the whole array."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str) -> None:
        self._path, self._shape, self._dtype = path, shape, np.dtype(dtype)
        self._digest = hashlib.sha256()
        self._elements_left = math.prod(shape)

    def __enter__(self) -> "NpyStream":
        self._file = _Digesting(self._path, self._digest)
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        return self

    def append(self, rows: np.ndarray) -> None:
        self._elements_left -= rows.size
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is None and self._elements_left:
            raise ValueError(f"{self._path}: {self._elements_left} elements were not written")

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


class _Digesting:
    """A file to write to whose content is hashed on the way."""

    def __init__(self, path: Path, digest: "hashlib._Hash") -> None:
        self._file = path.open("wb")
        self._digest = digest

    def write(self, content: bytes | memoryview) -> None:
        self._digest.update(content)
        self._file.write(content)

    def close(self) -> None:
        self._file.close()
