"""Schemas of kinds outside Kubernetes: of cert-manager and of prometheus-operator.

Their own schemas come with their installation and are not in any package. These have the fields
that our manifests use and a few more, by their API references; any other field is an error, so
that one that is misspelt, or is in the wrong place, is found. What is left out here is no proof
that there is no such field: add it when it is needed.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_TEXTS: Schema = {"type": "array", "items": _TEXT, "minItems": 1}
# As Go writes them; cert-manager takes no days.
_GO_DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s))+$"}
_PROMETHEUS_DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(y|w|d|h|m|s|ms))+$"}
_NAMES: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


def _resource(group: str, kind: str, spec: Schema) -> Schema:
    metadata = _object({"name": _TEXT}, namespace=_TEXT, labels=_NAMES, annotations=_NAMES)
    return _object(
        {
            "apiVersion": {"const": f"{group}/v1"},
            "kind": {"const": kind},
            "metadata": metadata,
            "spec": spec,
        }
    )


_CERTIFICATE = _object(
    {
        "secretName": _TEXT,
        "issuerRef": _object({"name": _TEXT}, kind={"enum": ["Issuer", "ClusterIssuer"]}),
    },
    duration=_GO_DURATION,
    renewBefore=_GO_DURATION,
    commonName={"type": "string", "maxLength": 64},
    dnsNames=_TEXTS,
    ipAddresses=_TEXTS,
    uris=_TEXTS,
    usages=_list(
        {
            "enum": [
                "signing",
                "digital signature",
                "key encipherment",
                "key agreement",
                "cert sign",
                "server auth",
                "client auth",
            ]
        }
    ),
    isCA={"type": "boolean"},
    privateKey=_object(
        {},
        algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
        encoding={"enum": ["PKCS1", "PKCS8"]},
        size={"type": "integer"},
        rotationPolicy={"enum": ["Never", "Always"]},
    ),
)
_POD_MONITOR = _object(
    {
        "selector": _object({}, matchLabels=_NAMES),
        "podMetricsEndpoints": _list(
            _object(
                {},
                port=_TEXT,
                path=_TEXT,
                scheme={"enum": ["http", "https"]},
                interval=_PROMETHEUS_DURATION,
                scrapeTimeout=_PROMETHEUS_DURATION,
                honorLabels={"type": "boolean"},
            )
        ),
    },
    jobLabel=_TEXT,
    podTargetLabels=_TEXTS,
    namespaceSelector=_object({}, any={"type": "boolean"}, matchNames=_TEXTS),
    sampleLimit={"type": "integer"},
)
_RECORDING = _object({"expr": _TEXT, "record": _TEXT}, labels=_NAMES)
_FOR = {"for": _PROMETHEUS_DURATION}  # a word of Python's
_ALERT = _object(
    {"expr": _TEXT, "alert": _TEXT},
    labels=_NAMES,
    annotations=_NAMES,
    keep_firing_for=_PROMETHEUS_DURATION,
    **_FOR,
)
_PROMETHEUS_RULE = _object(
    {
        "groups": _list(
            _object(
                {"name": _TEXT, "rules": _list({"anyOf": [_RECORDING, _ALERT]})},
                interval=_PROMETHEUS_DURATION,
            )
        )
    }
)

SCHEMAS: dict[str, Schema] = {
    "Certificate": _resource("cert-manager.io", "Certificate", _CERTIFICATE),
    "Issuer": _resource(
        "cert-manager.io", "Issuer", _object({"ca": _object({"secretName": _TEXT})})
    ),
    "PodMonitor": _resource("monitoring.coreos.com", "PodMonitor", _POD_MONITOR),
    "PrometheusRule": _resource("monitoring.coreos.com", "PrometheusRule", _PROMETHEUS_RULE),
}
