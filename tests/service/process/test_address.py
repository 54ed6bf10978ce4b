import pytest

from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.service.process.address import (
    bound_socket,
    grpc_target,
    is_loopback,
    join_address,
    split_address,
    split_addresses,
)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:7401", "127.0.0.1", 7401),
        ("coordinator.hfmds.svc:0", "coordinator.hfmds.svc", 0),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_host_and_port_survive_a_round_trip(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address", ["", "7401", ":7401", "localhost", "localhost:", "a:65536", "a:-1", "a:x", "a:²"]
)
def test_what_is_not_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"host:port with a port from 0 to 65535"):
        split_address(address)


@pytest.mark.parametrize(
    ("addresses", "target"),
    [
        ("coordinator:7401", "coordinator:7401"),
        ("10.0.0.1:7401,10.0.0.2:7402", "ipv4:10.0.0.1:7401,10.0.0.2:7402"),
        ("[::1]:7401,[::2]:7402", "ipv6:[::1]:7401,[::2]:7402"),
    ],
)
def test_one_or_several_addresses_are_a_target(addresses: str, target: str) -> None:
    assert grpc_target(addresses) == target
    assert [join_address(*place) for place in split_addresses(addresses)] == addresses.split(",")


@pytest.mark.parametrize(
    ("addresses", "complaint"),
    [
        ("10.0.0.1:7401,", "host:port with a port"),
        ("10.0.0.1:7401,b:7401", "'b' is a name"),
        ("10.0.0.1:7401,[::1]:7401", "all IPv4 or all IPv6"),
    ],
)
def test_several_addresses_must_be_numbers_of_one_kind(addresses: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        split_addresses(addresses)


def test_ipv6_without_brackets_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match=r"\[::1\]:7401"):
        split_address("::1:7401")


def test_loopback_is_recognised_by_address_and_by_name() -> None:
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [is_loopback(h) for h in ("10.0.0.1", "example.org")] == [False] * 2


def test_an_address_of_another_machine_is_refused_by_setting() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        bound_socket("192.0.2.1:0", "HFMDS_LISTEN")
    assert str(refusal.value) == (
        "cannot listen on 192.0.2.1:0: Cannot assign requested address; "
        "set HFMDS_LISTEN to an address of this machine"
    )


def test_a_host_that_does_not_resolve_is_refused_by_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"no\.invalid:0.*HFMDS_LISTEN"):
        bound_socket("no.invalid:0", "HFMDS_LISTEN")
