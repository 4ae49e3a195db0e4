"""Makes the page of the package index from README.md, and its addresses; a hook of hatchling.

The index shows the page outside the repository, so each link and picture needs a whole address. The
repository has none that is fixed: whoever builds a release gives it as ``HEADRACE_REPOSITORY``
(``make wheel REPOSITORY=https://...``). Without it the page has no pictures, and the text of its
links only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+://)([^)\s]+)\)")
_ONLY_PICTURE = re.compile(r"\n+(?=\n\n)")


def page(readme: str, repository: str | None, version: str) -> str:
    """Return README as the index shows it."""
    base = None if repository is None else repository.rstrip("/")

    def whole(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if base is None:
            return "" if picture else text
        return f"{picture}[{text}]({base}/{'raw' if picture else 'blob'}/v{version}/{path})"

    return _ONLY_PICTURE.sub("", _LINK.sub(whole, readme))


def urls(repository: str | None, version: str) -> dict[str, str]:
    """Return the addresses that the index lists beside the page."""
    if repository is None:
        return {}
    base = repository.rstrip("/")
    files = f"{base}/blob/v{version}"
    return {
        "Repository": base,
        "Documentation": f"{files}/docs/guide/README.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Security": f"{files}/SECURITY.md",
        "Issues": f"{base}/issues",
    }


class PackagePage(MetadataHookInterface):
    """Adds the page and the addresses to what a wheel says of itself."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill the dynamic fields of pyproject.toml."""
        repository = os.environ.get("HEADRACE_REPOSITORY") or None
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = page(readme, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(repository, metadata["version"])
