"""The place that torchrun's variables give a process, and the values that are refused."""

from __future__ import annotations

import pytest

from perfsuite.errors import SettingError
from perfsuite.ranks.torchrun.membership import Membership, read_membership

BY_HAND = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
BY_TORCHRUN = {
    **BY_HAND,
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "3",
}


def test_without_torchruns_variables_a_process_is_alone() -> None:
    assert read_membership({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "RANK": "1"}) is None


def test_torchruns_agent_keeps_the_store_and_counts_the_restarts() -> None:
    assert read_membership(BY_TORCHRUN) == Membership(
        rank=0, world_size=2, host="node0", port=29500, hosts_store=False, num_restarts=3
    )


def test_without_an_agent_rank_0_alone_keeps_the_store() -> None:
    places = [read_membership({**BY_HAND, "RANK": rank}) for rank in ("0", "1")]

    assert [place.hosts_store for place in places if place is not None] == [True, False]


def test_keys_of_a_restart_are_not_those_of_the_start_before() -> None:
    first, again = read_membership(BY_HAND), read_membership(BY_TORCHRUN)

    assert first is not None
    assert again is not None
    assert (first.prefix, again.prefix) == ("perfsuite/0", "perfsuite/3")


def test_half_of_the_variables_is_a_mistake() -> None:
    with pytest.raises(SettingError) as caught:
        read_membership({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"})

    assert str(caught.value) == (
        "RANK and WORLD_SIZE are set, and MASTER_ADDR is not; start with torchrun, or unset them "
        "to run on this machine alone"
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("WORLD_SIZE", "0", "from 1 to 2147483647"),
        ("WORLD_SIZE", "two", "from 1 to 2147483647"),
        ("WORLD_SIZE", "2147483648", "from 1 to 2147483647"),
        ("RANK", "2", "from 0 to 1"),
        ("RANK", "-1", "from 0 to 1"),
        ("MASTER_PORT", "70000", "from 1 to 65535"),
        ("MASTER_PORT", "²", "from 1 to 65535"),
        ("TORCHELASTIC_RESTART_COUNT", "first", "from 0 to 2147483647"),
    ],
)
def test_a_value_that_cannot_be_is_named(name: str, value: str, allowed: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_membership({**BY_HAND, name: value})

    assert str(caught.value) == (
        f"{name} is {value!r} (environment); use a whole number {allowed}, as torchrun sets it"
    )


def test_a_number_of_thousands_of_digits_is_named_in_short() -> None:
    with pytest.raises(SettingError) as caught:
        read_membership({**BY_HAND, "WORLD_SIZE": "9" * 5000})

    assert str(caught.value) == (
        "WORLD_SIZE is '999999999999...9999999999999' (environment); use a whole number from 1 to "
        "2147483647, as torchrun sets it"
    )


def test_an_address_that_is_empty_is_a_mistake() -> None:
    with pytest.raises(SettingError) as caught:
        read_membership({**BY_HAND, "MASTER_ADDR": " "})

    assert str(caught.value) == (
        "MASTER_ADDR is ' ' (environment); use the name or the address of rank 0's host, as "
        "torchrun sets it"
    )
