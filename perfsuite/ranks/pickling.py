"""Functions and objects, a test file's own too, as bytes for another process."""

import contextlib
import importlib
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle

from perfsuite.errors import WorkloadError


def _reduce(code: CodeType) -> tuple[Any, ...]:
    build, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _build_code, (build, parts, code.co_filename)


def _build_code(build: Callable[..., CodeType], parts: tuple[Any, ...], path: str) -> CodeType:
    return build(*parts).replace(co_filename=path)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    # cloudpickle 3.1.3 drops the file of what it packs by value, which every message names.
    dispatch_table: ClassVar = ChainMap({CodeType: _reduce}, cloudpickle.Pickler.dispatch_table)

    def reducer_override(self, value: Any) -> Any:
        # cloudpickle also sends modules that a function's attribute names may refer to: the name
        # `classes` brings torch.classes, which is no plain module and cannot be pickled.
        if isinstance(value, ModuleType) and type(value) is not ModuleType:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def pack(value: Any) -> bytes:
    """Return `value` as bytes for `unpack` in another process, or raise a WorkloadError."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        found = f"cannot send {value!r} to another process: {error}"
        raise WorkloadError(f"{found}; build what cannot be pickled inside the function") from error
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """Return the value that `pack` was given, in another process."""
    return cloudpickle.loads(data)


@contextlib.contextmanager
def packed_by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Pack what is in modules that another process cannot import, such as a test's own."""
    # Conftests of several folders share one name, and pytest lets at most one of them keep it.
    # Objects of a module that cannot be imported by its name travel by value anyway.
    importable = {module for module in modules if sys.modules.get(module.__name__) is module}
    with contextlib.ExitStack() as registered:
        for module in importable:
            cloudpickle.register_pickle_by_value(module)
            registered.callback(cloudpickle.unregister_pickle_by_value, module)
        yield
