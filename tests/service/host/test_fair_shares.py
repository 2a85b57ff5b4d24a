"""Shares of the places of a table: who gets one, and who does not."""

from hypothesis import given
from hypothesis import strategies as st

from fedstack.service.host.calls.call_table import NOBODY, FairShares, caller_at, caller_with


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(shares: FairShares, peer: str, times: int) -> int:
    return sum(shares.take(peer) for _ in range(times))


def test_who_is_alone_takes_all_places() -> None:
    assert taken(FairShares(10), "a", 12) == 10


def test_who_cannot_be_told_apart_has_no_share() -> None:
    shares = FairShares(10)
    assert shares.take("a")
    assert taken(shares, NOBODY, 12) == 9


def test_beside_another_a_peer_has_half() -> None:
    shares = FairShares(10)
    assert shares.take("b")
    assert taken(shares, "a", 12) == 5
    assert "half of them while other clients need some" in shares.refused
    assert taken(shares, "b", 12) == 4
    assert shares.refused == "one more"


def test_the_only_place_of_a_table_goes_to_whoever_comes_first() -> None:
    shares = FairShares(1)
    assert shares.take("a")
    assert not shares.take("b")
    shares.give_back("a")
    assert shares.take("b")


def test_a_place_that_somebody_waits_for_does_not_go_to_who_has_half() -> None:
    clock = Clock()
    shares = FairShares(10, 60.0, clock)
    assert taken(shares, "a", 10) == 10
    assert not shares.take("b")
    shares.give_back("a")
    clock.now += 59.0
    assert not shares.take("a")
    assert shares.take("b")


def test_who_waits_no_longer_keeps_nothing_from_others() -> None:
    clock = Clock()
    shares = FairShares(10, 60.0, clock)
    assert taken(shares, "a", 10) == 10
    assert not shares.take("b")
    shares.give_back("a")
    clock.now += 61.0
    assert shares.take("a")


def test_who_was_refused_is_not_another_to_itself() -> None:
    shares = FairShares(10)
    assert taken(shares, "a", 11) == 10
    shares.give_back("a")
    assert shares.take("a")


def test_a_debtor_is_who_has_more_than_half() -> None:
    shares = FairShares(4)
    assert taken(shares, "a", 4) == 4
    assert shares.debtor("b") == "a"
    assert shares.debtor("a") is None
    shares.give_back("a")
    shares.give_back("a")
    assert shares.debtor("b") is None


@given(
    st.integers(1, 9),
    st.lists(
        st.tuples(st.sampled_from(["take", "give", "wait"]), st.sampled_from(["a", "b", "c", NOBODY])), max_size=80
    ),
)
def test_shares_hold_whatever_happens(most: int, events: list[tuple[str, str]]) -> None:
    clock = Clock()
    shares = FairShares(most, 60.0, clock)
    held = dict.fromkeys(["a", "b", "c", NOBODY], 0)
    refused = dict.fromkeys(held, 0.0)
    for event, peer in events:
        if event == "wait":
            clock.now += 25.0
        elif event == "give" and held[peer]:
            shares.give_back(peer)
            held[peer] -= 1
        elif event == "take":
            others = [other for other in held if other != peer]
            is_there = any(held[other] or refused[other] > clock.now - 60.0 for other in others)
            full = sum(held.values()) == most
            bound = peer != NOBODY and held[peer] * 2 >= most and is_there
            granted = shares.take(peer)
            assert granted == (not full and not bound)
            held[peer] += granted
            if not granted:
                refused[peer] = clock.now
        assert len(shares) == sum(held.values()) <= most
        debtor = shares.debtor(peer)
        assert debtor is None or (debtor != NOBODY and held[debtor] * 2 > most > held[peer] * 2)


def test_clients_are_told_apart_by_their_addresses_where_these_are_their_own() -> None:
    found = {
        peer: caller_at(peer)
        for peer in (
            "ipv4:10.0.0.1:50000",
            "ipv4:10.0.0.1:50001",
            "ipv4:10.0.0.2:50000",
            "ipv6:%5B2001:db8::1%5D:50000",
            "ipv6:%5B2001:db8::2%5D:50001",
            "ipv6:%5B2001:db8:0:1::2%5D:50001",
            "ipv6:%5B::ffff:10.0.0.1%5D:50000",
        )
    }
    assert list(found.values()) == [
        "ipv4:10.0.0.1",
        "ipv4:10.0.0.1",
        "ipv4:10.0.0.2",
        "ipv6:2001:db8::/64",
        "ipv6:2001:db8::/64",
        "ipv6:2001:db8:0:1::/64",
        "ipv4:10.0.0.1",
    ]


def test_clients_on_the_servers_own_machine_are_not_told_apart() -> None:
    for peer in (
        "ipv4:127.0.0.1:50000",
        "ipv6:%5B::1%5D:50000",
        "ipv6:%5B::ffff:127.0.0.1%5D:1",
        "unix:",
        "unix:/a/b",
        "",
    ):
        assert caller_at(peer) == NOBODY


def test_the_name_of_who_has_a_token_does_not_show_it() -> None:
    assert caller_with("secret") == caller_with("secret") != caller_with("other")
    assert "secret" not in caller_with("secret")
