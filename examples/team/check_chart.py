"""Check the Helm chart, as `make chart` does: lint, and manifests against the schemas of Kubernetes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import helm_python  # type: ignore[import-not-found] # in an environment of its own
import kubernetes_validate  # type: ignore[import-not-found]
import yaml  # type: ignore[import-untyped]

CHART = Path(__file__).parent / "helm"
VERSIONS = ("1.27", "1.37")
"""The oldest that the chart supports, and the newest."""
EVERYTHING: dict[str, Any] = {
    "config": {
        "settings": {"http": {"hosts": ["a.example", "b.example"], "cluster": {"redis": "redis://r"}}}
    },
    "envFrom": [{"secretRef": {"name": "servers"}}],
    "ingress": {"enabled": True},
    "persistence": {"enabled": True, "storageClass": "fast"},
}


def main() -> int:
    found = helm_python.lint(str(CHART))
    problems = [str(each) for each in found["messages"] if each["severity"] > 1] + found["errors"]
    count = 0
    for values in ({}, EVERYTHING):
        with helm_python.Chart.load(str(CHART)) as chart:
            files = chart.render(values, name="team", namespace="mcp")
        for name, text in files.items():
            for manifest in yaml.safe_load_all(text) if name.endswith(".yaml") else ():
                for version in VERSIONS if manifest else ():
                    count += 1
                    try:
                        kubernetes_validate.validate(manifest, version, strict=True)
                    except kubernetes_validate.ValidationError as error:
                        problems.append(f"{name}, {manifest['kind']}, Kubernetes {version}: {error}")
    print(
        *problems,
        f"Helm {helm_python.helm_sdk_version()}: {count} manifests, {len(problems)} problems",
        sep="\n",
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
