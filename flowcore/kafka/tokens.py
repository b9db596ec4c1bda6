"""Tokens of an issuer for client credentials (OAuth 2.0), for clients that cannot ask for them themselves.

A token is kept until most of its lifetime is over. It is not verified: the broker does that. Times are in
seconds.
"""

from __future__ import annotations

import base64
import http
import http.client
import json
import math
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowcore.background import call_within
from flowcore.errors import BrokerAccessError, BrokerError, UnreachableBrokerError
from flowcore.kafka.refusals import HTTP_BUSY, TLS_CLOSED

if TYPE_CHECKING:
    from flowcore.kafka.security import Security

__all__ = ["Token", "fetch_token"]

_TIMEOUT_S = 10.0
_LIMIT_S = 30.0
"""For a whole answer."""
_SHOWN = 200
"""Most characters of what the issuer says in an error."""
_LARGEST_BYTES = 1 << 20
_KEPT_SHARE = 0.8
_UNSAID_LIFETIME_S = 60.0
_kept: dict[Security, tuple[float, Token]] = {}


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and when it ends, in seconds since the epoch."""

    text: str = field(repr=False)
    end_s: float


def fetch_token(security: Security) -> Token:
    """Return a token for the client id and secret of a login with OAUTHBEARER.

    Raises:
        BrokerAccessError: The issuer refuses, or is not trusted.
        UnreachableBrokerError: The issuer does not answer.
    """
    until_s, token = _kept.get(security, (0.0, None))
    now_s = time.time()
    if token is not None and now_s < until_s:
        return token
    found = _ask(security)
    try:
        text = found["access_token"]
        lifetime_s = float(found.get("expires_in", _UNSAID_LIFETIME_S))
        # Any other character would end the token in the login, and begin what else the client says.
        if not re.fullmatch("[!-~]+", text) or not math.isfinite(lifetime_s):
            raise ValueError  # noqa: TRY301 - as if it were missing
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        why = "its answer has no access_token, or one that cannot be used"
        raise _failure(security, why, "check the address") from error
    token = Token(text, now_s + lifetime_s)
    _kept[security] = now_s + _KEPT_SHARE * lifetime_s, token
    return token


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the login would be sent to wherever it leads."""

    def redirect_request(self, *_: object) -> None:
        """Let the answer be an error."""


def _ask(security: Security) -> Any:
    form = {"grant_type": "client_credentials"}
    if security.token_scope is not None:
        form["scope"] = security.token_scope
    login = base64.b64encode(f"{security.username}:{security.password}".encode()).decode()
    # The address was checked: it begins with http.
    request = urllib.request.Request(  # noqa: S310
        security.token_url or "",
        urllib.parse.urlencode(form).encode(),
        {"Authorization": f"Basic {login}", "Accept": "application/json"},
    )
    try:
        context = ssl.create_default_context(cafile=security.token_ca)
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
        return call_within(_LIMIT_S, lambda: _read(opener, request))
    except urllib.error.HTTPError as error:
        with error:
            why = f"it answers {error.code} {str(error.reason)[:_SHOWN]}"
        is_down = error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR or error.code in HTTP_BUSY
        advice = "check kafka.sasl.username (the client id), kafka.sasl.password (its secret) and the scope"
        if http.HTTPStatus.MULTIPLE_CHOICES <= error.code < http.HTTPStatus.BAD_REQUEST:
            advice = "pass the address that it redirects to: the client secret is sent to no other"
        raise _failure(security, why, advice, is_down=is_down) from error
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        is_down = isinstance(reason, TLS_CLOSED) or not isinstance(reason, ssl.SSLError)
        advice = "check the address, the issuer and kafka.sasl.oauthbearer.ca"
        raise _failure(security, str(reason), advice, is_down=is_down) from error
    except (ValueError, RecursionError, http.client.HTTPException) as error:
        why = f"its answer is not JSON: {str(error)[:_SHOWN]}"
        raise _failure(security, why, "check the address") from error


def _read(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> Any:
    with opener.open(request, timeout=_TIMEOUT_S) as answer:
        return json.loads(answer.read(_LARGEST_BYTES))


def _failure(security: Security, why: str, advice: str, *, is_down: bool = False) -> BrokerError:
    kind = UnreachableBrokerError if is_down else BrokerAccessError
    return kind(
        f"the issuer kafka.sasl.oauthbearer.token.endpoint.url={security.token_url!r} gives no token "
        f"({why}): the broker would refuse the login; {advice}"
    )
