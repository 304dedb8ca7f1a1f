"""Every member of `oauth` in a definition: its name, its aliases in other products, and its JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping

from mcpd.config.field_spec import BOOLEAN, STRING, STRING_MAP, STRINGS, FieldSpec, Shape
from mcpd.model.oauth_settings import OAuthGrant

GRANTS: Mapping[str, OAuthGrant] = {
    "code": "code",
    "client_credentials": "client_credentials",
    "enterprise": "enterprise",
    "workload": "workload",
}

OAUTH_FIELDS = (
    FieldSpec("enabled", BOOLEAN, "Whether mcpd logs in to the server."),
    FieldSpec("account", STRING, "The account, to log in to the same server more than once."),
    FieldSpec("grant", {"enum": list(GRANTS)}, "How to obtain a token."),
    FieldSpec("clientId", STRING, "The ID of a client that is registered already.", ("client_id",)),
    FieldSpec("clientSecret", STRING, "The secret of that client.", ("client_secret",)),
    FieldSpec("privateKey", STRING, "A PEM key with which that client authenticates instead."),
    FieldSpec("clientMetadataUrl", STRING, "The URL of a Client ID Metadata Document."),
    FieldSpec("scopes", STRINGS, "The scopes to request."),
    FieldSpec("scope", STRING, "The scopes to request, separated by spaces."),
    FieldSpec("issuer", STRING, "The issuer to accept, if the server names another."),
    FieldSpec("resource", {"type": ["string", "boolean"]}, "The `resource` to request, or false for none."),
    FieldSpec("redirectUri", STRING, "The loopback URL to which the login returns.", ("redirect_uri",)),
    FieldSpec("callbackPort", {"type": "integer"}, "The port on localhost to which the login returns."),
    FieldSpec("extraParams", STRING_MAP, "More parameters for the authorization request."),
    FieldSpec("assertion", STRING, "The JWT of a workload, for the grant `workload`."),
    FieldSpec("identityProvider", {"type": "object"}, "The identity provider, for the grant `enterprise`."),
)
"""Every member of `oauth`."""

OAUTH_SHAPE: Shape = {
    "anyOf": [
        {"type": "boolean"},
        {
            "type": "object",
            "properties": {
                name: {**field.shape, "description": field.description}
                for field in OAUTH_FIELDS
                for name in (field.name, *field.aliases)
            },
        },
    ]
}

OAUTH_NAMES = {name: field.name for field in OAUTH_FIELDS for name in (field.name, *field.aliases)}
