"""Writes a bill of materials for each image, as CycloneDX JSON.

    python packaging/sbom.py [--output dist/sbom] [--packages FOLDER]

pyproject.toml says which packages the project needs. Versions, licences and dependencies come from
the packages installed here, or in the `site-packages` of an unpacked image. The bills do not list
the packages of the base image.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "hfmds-fl"
_PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
_PROJECT = tomllib.loads(_PYPROJECT.read_text())["project"]


@dataclass(frozen=True, slots=True)
class Image:
    """What k8s/Dockerfile installs for one of its targets."""

    extras: tuple[str, ...]
    besides: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()


IMAGES: Mapping[str, Image] = {
    "coordinator": Image(
        ("server", "torch", "postgres", "s3", "cli", "tracing"), without=frozenset({"triton"})
    ),
    "synthesis-store": Image(("server", "postgres", "s3", "tracing")),
    "edge-client": Image(("edge", "tracing")),
    "edge-simulator": Image(("edge", "tracing"), ("scikit-learn",)),
    "edge-client-torch": Image(("edge", "torch", "tracing"), ("scikit-learn",)),
}


class NotInstalled(Exception):
    """A package of an image is not installed here."""


class Packages:
    """The packages installed in some folders, or in this environment."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        packages = distributions(path=list(folders)) if folders else distributions()
        self._by_name = {canonicalize_name(p.metadata["Name"]): p for p in packages}

    def __getitem__(self, name: str) -> Distribution:
        try:
            return self._by_name[canonicalize_name(name)]
        except KeyError:
            raise NotInstalled(
                f"{name} is not installed; run `make test` once, or give --packages"
            ) from None

    def needs(self, name: str, extras: Iterable[str]) -> Iterator[Requirement]:
        """The requirements of a package with these extras on this platform."""
        if name == PROJECT:  # its installed metadata are as old as the last `pip install`
            optional = _PROJECT["optional-dependencies"]
            texts = [*_PROJECT["dependencies"], *(text for e in extras for text in optional[e])]
        else:
            texts = self[name].requires or []
        for needed in map(Requirement, texts):
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in (*extras, "")):
                yield needed

    def closure(self, image: Image) -> dict[str, set[str]]:
        """All packages of an image by name, each with its direct requirements."""
        needs_by_name: dict[str, set[str]] = {}
        seen: set[tuple[str, frozenset[str]]] = set()
        queue = [
            (PROJECT, frozenset(image.extras)),
            *((name, frozenset()) for name in image.besides),
        ]
        while queue:
            name, extras = queue.pop()
            if (name, extras) in seen:
                continue
            seen.add((name, extras))
            needs = needs_by_name.setdefault(name, set())
            for needed in self.needs(name, extras):
                other = canonicalize_name(needed.name)
                if other in image.without:
                    continue
                if other != name:  # an extra of its own
                    needs.add(other)
                queue.append((other, frozenset(needed.extras)))
        return needs_by_name


def bill(name: str, packages: Packages) -> str:
    """The bill of one image, as JSON."""
    needs = packages.closure(IMAGES[name])
    components = {one: _component(packages[one]) for one in sorted(needs)}
    image = Component(name=f"hfmds/{name}", type=ComponentType.CONTAINER, bom_ref=f"image-{name}")
    bom = Bom(components=components.values())
    bom.metadata.component = image
    bom.register_dependency(
        image, [components[PROJECT], *(components[b] for b in IMAGES[name].besides)]
    )
    for one, others in needs.items():
        bom.register_dependency(components[one], [components[other] for other in sorted(others)])
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _component(package: Distribution) -> Component:
    name = canonicalize_name(package.metadata["Name"])
    expression = package.metadata.get("License-Expression")
    return Component(
        name=name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}=={package.version}",
        purl=PackageURL("pypi", None, name, package.version),
        description=package.metadata.get("Summary"),
        licenses=[LicenseFactory().make_from_string(expression)] if expression else (),
    )


def main() -> None:
    """Write a bill for each image."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("dist/sbom"))
    parser.add_argument("--packages", action="append", default=[], metavar="FOLDER")
    options = parser.parse_args()
    packages = Packages(options.packages)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in IMAGES:
        path = options.output / f"{name}.cdx.json"
        try:
            path.write_text(bill(name, packages))
        except NotInstalled as error:
            sys.exit(f"{name}: {error}")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
