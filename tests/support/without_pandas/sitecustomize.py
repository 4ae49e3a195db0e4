"""Read by Python as a process of tests starts that runs jobs: such a process has no pandas.

Arrow loads it wherever it is installed, half a second of a core, and no job of the tests needs it.
"""

import sys
from importlib.machinery import ModuleSpec


class WithoutPandas:
    """Finds pandas, and fails to load it."""

    def find_spec(self, name: str, *where: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "pandas" else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: object) -> None:
        raise ImportError("processes of tests do without pandas")


sys.meta_path.insert(0, WithoutPandas())
