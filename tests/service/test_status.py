from dataclasses import replace
from pathlib import Path

import grpc
import pytest

import hfmds.errors
from hfmds.errors import (
    ConfigurationError,
    Diverged,
    HfmdsError,
    InvalidInput,
    NotAllowed,
    TooLate,
    Unavailable,
)
from hfmds.service.client.peer import Peer
from hfmds.service.security.tls import Trust
from hfmds.service.status import RETRY_KEY, STATUS_OF, error_from, metadata_of, status_of

PEER = Peer("coordinator", "127.0.0.1:7401", "HFMDS_COORDINATOR")

ALL_ERRORS = [
    error
    for error in vars(hfmds.errors).values()
    if isinstance(error, type)
    and issubclass(error, HfmdsError)
    and error is not Diverged  # on the wire it is the InvalidInput it derives from
]


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def test_every_error_has_a_status_of_its_own() -> None:
    assert set(STATUS_OF) == set(ALL_ERRORS)
    ours = [STATUS_OF[e] for e in ALL_ERRORS if e not in (HfmdsError, ConfigurationError)]
    assert len(ours) == len(set(ours))


@pytest.mark.parametrize("error", [e for e in ALL_ERRORS if e is not ConfigurationError])
def test_an_error_is_the_same_on_the_other_side(error: type[HfmdsError]) -> None:
    code = status_of(error("round 3 is over"))
    back = error_from(failure(code, "round 3 is over"), PEER)
    assert type(back) is error
    assert "round 3 is over" in str(back)
    assert "coordinator at 127.0.0.1:7401" in str(back)


def test_why_a_result_is_late_is_told_to_programs_too() -> None:
    late = TooLate("round 3 is over", "goal-reached")
    sent = grpc.aio.Metadata(("other", "x"), *metadata_of(late))
    aborted = grpc.aio.AioRpcError(
        grpc.StatusCode.ABORTED, grpc.aio.Metadata(), sent, "round 3 is over"
    )
    back = error_from(aborted, PEER)
    assert isinstance(back, TooLate)
    assert back.reason == "goal-reached"
    # A server of another version may not tell.
    silent = error_from(failure(grpc.StatusCode.ABORTED, "over"), PEER)
    assert isinstance(silent, TooLate)
    assert silent.reason == ""
    assert metadata_of(InvalidInput("x")) == metadata_of(TooLate("over")) == ()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (metadata_of(Unavailable("full", retry_after_seconds=12.5)), 12.5),
        (metadata_of(Unavailable("full", retry_after_seconds=0.0)), 0.0),
        (metadata_of(Unavailable("full")), None),
        (((RETRY_KEY, "soon"),), None),
        (((RETRY_KEY, "-3"),), None),
        (((RETRY_KEY, "nan"),), None),
        (((RETRY_KEY, "inf"),), None),
    ],
)
def test_when_to_try_again_is_told_to_programs_too(
    sent: tuple[tuple[str, str], ...], expected: float | None
) -> None:
    trailing = grpc.aio.Metadata(("other", "1"), *sent)
    code = grpc.StatusCode.UNAVAILABLE
    back = error_from(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, "full"), PEER)
    assert isinstance(back, Unavailable)
    assert back.retry_after_seconds == expected
    # Who has said when to come back is running, at this address.
    assert ("is it running" in str(back)) == (expected is None)


def test_an_error_without_an_entry_is_answered_like_its_parent() -> None:
    class Special(InvalidInput):
        pass

    assert status_of(Special("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert status_of(Diverged("x")) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_wrong_configuration_of_the_server_is_not_the_callers() -> None:
    back = error_from(failure(status_of(ConfigurationError("x")), "x"), PEER)
    assert type(back) is HfmdsError


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (
            grpc.StatusCode.UNAVAILABLE,
            Unavailable,
            (
                "coordinator at 127.0.0.1:7401 is unavailable (connection refused); "
                "is it running, is HFMDS_COORDINATOR its address, and does it serve without TLS?"
            ),
        ),
        (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            Unavailable,
            "coordinator at 127.0.0.1:7401 did not answer in time (connection refused)",
        ),
        (
            grpc.StatusCode.UNIMPLEMENTED,
            ConfigurationError,
            (
                "coordinator at 127.0.0.1:7401 does not know this call (connection refused); "
                "does HFMDS_COORDINATOR name another service, or one of another version?"
            ),
        ),
        (
            grpc.StatusCode.UNAUTHENTICATED,
            NotAllowed,
            "connection refused (answer of coordinator at 127.0.0.1:7401)",
        ),
        (
            grpc.StatusCode.UNKNOWN,
            HfmdsError,
            "connection refused (answer of coordinator at 127.0.0.1:7401)",
        ),
    ],
)
def test_what_grpc_says_by_itself_is_put_into_our_words(
    code: grpc.StatusCode, error: type[HfmdsError], message: str
) -> None:
    back = error_from(failure(code, "connection refused"), PEER)
    assert type(back) is error
    assert str(back) == message


def test_a_status_without_a_message_is_named() -> None:
    back = error_from(failure(grpc.StatusCode.NOT_FOUND, ""), PEER)
    assert str(back) == "NOT_FOUND (answer of coordinator at 127.0.0.1:7401)"


def test_who_shows_a_certificate_is_asked_whether_it_is_of_the_peers_fleet() -> None:
    secured = replace(PEER, tls=Trust(Path("authority.crt")))
    back = error_from(failure(grpc.StatusCode.UNAVAILABLE, "Socket closed"), secured)
    assert str(back).endswith("and are our HFMDS_TLS_ files of its fleet?")
