"""Errors of a broker that refuses a client, or that a client must not trust, with the way out.

Kafka's clients report a bad certificate in their own words, or only as a broker that is away. `diagnose_tls`
repeats the handshake with Python's TLS, which says what is wrong. It sends nothing that Kafka could read.
"""

from __future__ import annotations

import contextlib
import http
import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flowcore.errors import BrokerAccessError

if TYPE_CHECKING:
    from flowcore.kafka.security import Security

__all__ = ["GUIDE", "HTTP_BUSY", "TLS_CLOSED", "diagnose_tls", "login_refused", "permission_refused"]

GUIDE = "docs/kafka-security.md"
TLS_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""A server that ends, or a proxy that does not reach it, has closed the connection and refused nothing."""
HTTP_BUSY = (http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS)
"""Answers that a later request may not get."""
_ANSWER_S = 2.0
_ALERT_S = 0.5
_EXPIRED = 10
_OTHER_NAME = (62, 63, 64)


def login_refused(address: str, security: Security, reason: str) -> BrokerAccessError:
    """The error of a name and password, or of a token, that a broker refuses."""
    if not security.mechanism:
        return BrokerAccessError(
            f"broker {address} refuses the connection ({reason}): nothing can be read or written; check "
            f"kafka.security.protocol and kafka.ssl.* ({GUIDE})"
        )
    return BrokerAccessError(
        f"broker {address} refuses the login of {security.username!r} by {security.mechanism} ({reason}): "
        "nothing can be read or written; check kafka.sasl.username and kafka.sasl.password, and that the "
        f"broker enables kafka.sasl.mechanism={security.mechanism} ({GUIDE})"
    )


def permission_refused(address: str, security: Security, reason: str) -> BrokerAccessError:
    """The error of a request that the broker's access control lists do not allow."""
    who = f"user {security.username!r}" if security.username else "this client"
    return BrokerAccessError(
        f"broker {address} does not allow {who} this ({reason}): nothing can be read or written there; add "
        f"the missing entry to its access control list, see the table in {GUIDE}"
    )


def diagnose_tls(address: str, security: Security) -> BrokerAccessError | None:
    """The problem with the certificates of a connection; None without one, or if no broker answers."""
    if "SSL" not in security.protocol:
        return None
    try:
        context = _context(security)
    except OSError as error:
        return _unusable(security, error)
    for server in address.split(","):
        with contextlib.suppress(OSError):  # it does not answer, or did not refuse
            if found := _handshake(server, context, security):
                return found
    return None


def _context(security: Security) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=security.ca)
    if security.certificate is not None:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(security.certificate, security.key, security.key_password or "")
    return context


def _unusable(security: Security, error: OSError) -> BrokerAccessError:
    reason = getattr(error, "reason", None) or error
    if "NO_CERTIFICATE_OR_CRL_FOUND" in str(reason):
        return BrokerAccessError(
            f"kafka.ssl.ca={str(security.ca)!r} has no certificate ({reason}): no broker could be trusted; "
            "pass a PEM file that begins with BEGIN CERTIFICATE"
        )
    return BrokerAccessError(
        f"kafka.ssl.certificate={str(security.certificate)!r} with kafka.ssl.key={str(security.key)!r} "
        f"cannot be used ({reason}): the broker would refuse the connection; check that they belong "
        "together, and kafka.ssl.key-password"
    )


def _handshake(server: str, context: ssl.SSLContext, security: Security) -> BrokerAccessError | None:
    found = urlsplit(f"//{server}")
    host, port = found.hostname or "", found.port or 0
    try:
        with (
            socket.create_connection((host, port), _ANSWER_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            # With TLS 1.3 the broker refuses a client's certificate after the handshake.
            secured.settimeout(_ALERT_S)
            secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        return _not_trusted(server, security, error)
    except TLS_CLOSED:
        return None  # the broker has ended, or this is not a TLS listener
    except ssl.SSLError as error:
        return _alert(server, security, error)
    return None


def _not_trusted(server: str, security: Security, error: ssl.SSLCertVerificationError) -> BrokerAccessError:
    if error.verify_code == _EXPIRED:
        advice = "renew the broker's certificate, and check the clock of this machine"
    elif error.verify_code in _OTHER_NAME:
        advice = (
            "use a name of the certificate in kafka.bootstrap.servers and in the broker's "
            "advertised.listeners, or have a certificate made for this name"
        )
    else:
        known = "the system's authorities" if security.ca is None else repr(str(security.ca))
        advice = f"set kafka.ssl.ca, now {known}, to the PEM file of the authority that signed it"
    return BrokerAccessError(
        f"broker {server} is not trusted ({error.verify_message.rstrip('.')}): what answers could "
        f"read what is sent; {advice}"
    )


def _alert(server: str, security: Security, error: ssl.SSLError) -> BrokerAccessError:
    given = "is not set" if security.certificate is None else f"is {str(security.certificate)!r}"
    return BrokerAccessError(
        f"broker {server} refuses the client's certificate ({error.reason}): nothing can be read or "
        f"written; kafka.ssl.certificate {given}: pass one that an authority of the broker has signed and "
        "that has not expired"
    )
