from __future__ import annotations

import sys
import types

import pytest
import torch

from perfsuite.errors import WorkloadError
from perfsuite.ranks.pickling import pack, packed_by_value, unpack


def test_a_closure_of_a_test_module_arrives_by_value() -> None:
    factor = 3

    def triple(number: int) -> int:
        return number * factor

    with packed_by_value([sys.modules[__name__]]):
        data = pack(triple)

    assert unpack(data)(4) == 12


def test_modules_of_the_same_name_do_not_get_in_each_others_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, shadowed = types.ModuleType("conftest"), types.ModuleType("conftest")
    for module, value in ((kept, 1), (shadowed, 2)):
        exec(f"def give(): return {value}", module.__dict__)
    monkeypatch.setitem(sys.modules, "conftest", kept)
    with packed_by_value([kept, shadowed]):
        data = pack((kept.give, shadowed.give))
    monkeypatch.delitem(sys.modules, "conftest")

    first, second = unpack(data)

    assert (first(), second()) == (1, 2)


def test_a_module_that_cannot_be_imported_by_its_name_is_no_obstacle() -> None:
    forgotten = types.ModuleType("forgotten_conftest")
    exec("def give(): return 3", forgotten.__dict__)

    with packed_by_value([forgotten]):
        data = pack(forgotten.give)

    assert unpack(data)() == 3


def test_an_attribute_called_classes_beside_torch_is_no_obstacle() -> None:
    class Data:
        classes = ("a", "b")

    def num_classes(data: Data) -> torch.Tensor:
        return torch.tensor(len(data.classes))

    with packed_by_value([sys.modules[__name__]]):
        packed = pack((num_classes, Data()))
    function, data = unpack(packed)

    assert function(data) == 2


def test_what_cannot_leave_the_process_is_refused_in_one_sentence() -> None:
    numbers = (number for number in range(3))

    with pytest.raises(WorkloadError) as caught:
        pack(numbers)

    assert str(caught.value) == (
        f"cannot send {numbers!r} to another process: cannot pickle 'generator' object; "
        "build what cannot be pickled inside the function"
    )


def test_code_that_arrives_by_value_names_its_file_and_the_code_within_it_too() -> None:
    def outer() -> types.CodeType:
        def inner() -> None: ...

        return inner.__code__

    with packed_by_value([sys.modules[__name__]]):
        arrived = unpack(pack(outer))

    assert arrived.__code__.co_filename == __file__
    assert arrived().co_filename == __file__
