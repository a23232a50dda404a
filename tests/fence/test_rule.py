"""The one rule: a higher token passes and becomes the mark, the same passes for the same grant, the rest is stale."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockline
from lockline import ConfigError, StaleToken
from lockline.fence import Mark, Offer, parse_sequencer
from lockline.fence.rule import LARGEST, a_resource, may_enter, may_write, offer_of, passed

TOKENS = st.integers(1, LARGEST)
GRANTS = st.sampled_from(["", "a", "b"])


@given(st.lists(st.tuples(TOKENS | st.integers(1, 5), GRANTS)))
def test_an_accepted_token_is_never_lower_than_an_earlier_one(offers: list[tuple[int, str]]) -> None:
    mark: Mark | None = None
    accepted: list[tuple[int, str]] = []
    for token, grant in offers:
        offer = Offer("l", token, grant)
        if may_enter(mark, offer):
            mark = passed("r", mark, offer, writes=False, exact=False)
            accepted.append((token, grant))
        else:
            assert mark is not None
            assert (token, grant) < (mark.token, "c")
            with pytest.raises(StaleToken):
                passed("r", mark, offer, writes=True, exact=False)
    assert [token for token, _ in accepted] == sorted(token for token, _ in accepted)
    # One token, one grant: whoever came with it first keeps it.
    assert len({token for token, _ in accepted}) == len(set(accepted))


def test_the_same_token_passes_only_for_the_same_grant() -> None:
    assert may_enter(Mark(5, "a"), Offer("l", 5, "a"))
    assert not may_enter(Mark(5, "a"), Offer("l", 5, "b"))


def test_a_bare_number_is_a_grant_of_its_own() -> None:
    assert may_enter(Mark(5, ""), Offer("l", 5, ""))
    assert not may_enter(Mark(5, "a"), Offer("l", 5, ""))
    assert not may_enter(Mark(5, ""), Offer("l", 5, "a"))


def test_the_exact_rule_lets_the_latest_entrant_write_and_nobody_else() -> None:
    first, second = Offer("l", 0, "job-9"), Offer("l", 0, "job-1")
    mark = passed("r", None, first, writes=False, exact=True)
    assert may_write(mark, first, exact=True)
    mark = passed("r", mark, second, writes=False, exact=True)
    assert may_write(mark, second, exact=True)
    with pytest.raises(StaleToken) as refused:
        passed("r", mark, first, writes=True, exact=True)
    assert (refused.value.offered, refused.value.highest) == ("job-9", "job-1")
    assert not may_write(None, first, exact=True)


def test_a_stale_token_has_its_parts_by_place_and_by_name_and_survives_a_pickle() -> None:
    error = StaleToken("orders/42", 4, 5)
    assert error.args == StaleToken(resource="orders/42", offered=4, highest=5).args
    again = pickle.loads(pickle.dumps(error))
    assert (again.resource, again.offered, again.highest, str(again)) == ("orders/42", 4, 5, str(error))


def test_a_lease_offers_its_name_token_and_grant() -> None:
    with lockline.connect("memory:") as client, client.lock("orders/42") as lease:
        assert offer_of("anything", lease) == Offer("orders/42", lease.token, lease.id)
        assert offer_of("anything", lease.sequencer()) == offer_of("anything", lease)
        with pytest.raises(ConfigError, match="not 'other'"):
            offer_of("anything", lease, "other")


def test_a_bare_token_belongs_to_the_lock_named_like_the_resource_or_to_the_one_that_is_told() -> None:
    assert offer_of("orders/42", 7) == Offer("orders/42", 7, "")
    assert offer_of("orders/42", 7, "orders") == Offer("orders", 7, "")


def test_a_lease_with_several_holders_is_refused() -> None:
    with lockline.connect("memory:") as client:
        with client.semaphore("s", 2) as permit, pytest.raises(ConfigError, match="several holders"):
            offer_of("r", permit)
        with client.rwlock("rw").read() as read:
            with pytest.raises(ConfigError, match="several holders"):
                offer_of("r", read)
            with pytest.raises(ConfigError, match="several holders"):
                offer_of("r", read.sequencer())
            with pytest.raises(ConfigError, match="several holders"):
                read.headers()
        with client.rwlock("rw").write() as write:
            assert offer_of("r", write).token == write.token


@pytest.mark.parametrize("name", ["", None, 5, b"r", "a\0b", "\ud800", "x" * 513, "ü" * 257], ids=repr)
def test_a_resource_that_is_none_is_a_config_error(name: object) -> None:
    with pytest.raises(ConfigError):
        a_resource(name)


def test_a_lease_whose_name_some_stores_cannot_hold_is_refused() -> None:
    with lockline.connect("memory:") as client, client.lock("a\0b") as lease, pytest.raises(ConfigError, match="NUL"):
        offer_of("r", lease)


BAD_TOKENS = [0, -1, True, False, 1.0, "", None, b"5", 2**63, -(2**63), ..., float("nan"), [1]]


@pytest.mark.parametrize("token", BAD_TOKENS, ids=repr)
def test_a_token_that_is_none_is_a_config_error(token: object) -> None:
    with pytest.raises(ConfigError):
        offer_of("r", token)


@pytest.fixture(scope="module")
def client() -> Iterator[lockline.Client]:
    with lockline.connect("memory:") as client:
        yield client


@given(
    name=st.text(min_size=1, max_size=100).filter(
        lambda t: "\0" not in t and not any("\ud800" <= c <= "\udfff" for c in t)
    )
)
def test_a_sequencer_is_printable_and_reads_back(client: lockline.Client, name: str) -> None:
    with client.lock(name) as lease:
        text = lease.sequencer()
        assert text.isascii()
        assert text.isprintable()
        assert " " not in text
        assert parse_sequencer(text) == (name, "lock", lease.token, lease.id)
        for value in lease.headers().values():
            assert value.isascii()
            assert value.isprintable()


def test_a_sequencer_that_was_cut_or_changed_is_refused() -> None:
    with lockline.connect("memory:") as client, client.lock("orders/42") as lease:
        text = lease.sequencer()
    for wrong in (
        text[:-1],
        text[1:],
        text.replace(f":{lease.token}:", f":{lease.token + 1}:"),
        "",
        "41",
        "a:b:c:d:e",
        text + "0",
    ):
        with pytest.raises(ConfigError):
            parse_sequencer(wrong)


def test_the_names_are_there_without_any_other_package() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['redis', 'boto3', 'botocore', 'sqlalchemy', 'psycopg', 'click']))\n"
        "import lockline.fence as f\n"
        "[getattr(f, name) for name in f.__all__]; f.FileFence(); f.SqlFence()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
