"""Bearer tokens and the access they give."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from weightcast.contract.names import Role
from weightcast.contract.problems import Code

from weightcast_server.api.problems import ApiProblem
from weightcast_server.settings import Settings, split_tokens


class Access(StrEnum):
    """What a token permits."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"
    OPERATOR = "operator"
    VIEWER = "viewer"


READ: Final = frozenset(Access)
TRAINERS: Final = frozenset({Access.TRAINER, Access.OPERATOR})
ROLLOUTS: Final = frozenset({Access.ROLLOUT, Access.OPERATOR})
WORKERS: Final = TRAINERS | ROLLOUTS
EVERYONE: Final[frozenset[Access]] = frozenset()
"""Routes without any check."""

SCOPE_KEY: Final = "weightcast.access"
_OPERATOR: Final = frozenset({Access.OPERATOR})


class Authenticator:
    """Finds the access of a request's token. Without any token configured, everyone is an operator."""

    def __init__(self, settings: Settings) -> None:
        secrets = {
            Access.TRAINER: settings.trainer_tokens,
            Access.ROLLOUT: settings.rollout_tokens,
            Access.OPERATOR: settings.operator_tokens,
            Access.VIEWER: settings.viewer_tokens,
        }
        self._tokens = [
            (token.encode(), access) for access, secret in secrets.items() for token in split_tokens(secret)
        ]

    def access(self, authorization: str | None) -> frozenset[Access]:
        """The access that an ``Authorization`` header gives.

        Raises:
            ApiProblem: unauthorized.
        """
        if not self._tokens:
            return _OPERATOR
        if authorization is None:
            raise ApiProblem(Code.UNAUTHORIZED, "this server wants a bearer token")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise ApiProblem(Code.UNAUTHORIZED, "only the Bearer scheme is known")
        given = token.strip().encode("utf-8", "surrogateescape")
        # Every token is compared, whatever the outcome: the time tells nothing about which one was nearly right.
        found = frozenset([access for known, access in self._tokens if hmac.compare_digest(known, given)])
        if not found:
            raise ApiProblem(Code.UNAUTHORIZED, "the bearer token is not known here")
        return found


def require_role_of(scope: Mapping[str, Any], worker_id: str) -> None:
    """Refuse a token that is not of the role which this worker's id names (``<model>:<role>:…``).

    Raises:
        ApiProblem: forbidden.
    """
    if Access.OPERATOR in scope[SCOPE_KEY]:
        return
    role = worker_id.split(":")[1] if ":" in worker_id else ""
    if role not in list(Role):
        raise ApiProblem(Code.FORBIDDEN, f"{worker_id} is no worker's id, so no worker's token fits it")
    require_role(scope, Role(role))


def require_role(scope: Mapping[str, Any], role: Role) -> None:
    """Refuse a trainer's token for a rollout's act and the other way round.

    Raises:
        ApiProblem: forbidden.
    """
    access: frozenset[Access] = scope[SCOPE_KEY]
    if Access.OPERATOR not in access and Access(role.value) not in access:
        raise ApiProblem(Code.FORBIDDEN, f"this needs a {role.value} or operator token")
