"""The files of the page as browsers get them: few, small, at the address of their content."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.support.exploring import STATIC, Assets

from headrace.errors import InvalidInputError

MODULES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.glob("app/**/*.js"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STATIC, tmp_path / "static"))


def script(assets: Assets) -> str:
    found = assets.find(assets.digest, "page.js")
    assert found is not None
    return found.data.decode()


def test_all_modules_are_one_script_each_behind_those_that_it_imports() -> None:
    text = script(Assets(STATIC))
    assert len(MODULES) > 25
    places = {name: text.index(f"// {name}\n") for name in MODULES}
    for name in MODULES:
        for place in re.findall(r'(?:from |import\()"(\.[^"]+)"', (STATIC / name).read_text()):
            other = (STATIC / name).parent.joinpath(place).resolve()
            inner = other.relative_to(STATIC).as_posix()
            assert inner not in places or places[inner] < places[name], (name, inner)
    imports = re.findall(r"^import .*", text, re.MULTILINE)
    assert imports == ['import $vendor_uplot from "./vendor/uplot.js";']
    assert re.findall(r"^export ", text, re.MULTILINE) == []
    assert re.findall(r"import\([^)]*\)", text) == ['import("./vendor/echarts.js")']


def test_the_page_names_each_file_that_it_needs_and_they_are_small() -> None:
    assets = Assets(STATIC)
    index = assets.index.decode()
    named = re.findall(rf'(?:href|src)="/static/{assets.digest}/([^"]+)"', index)
    assert named == ["style/mark.svg", "page.css", "page.js", "vendor/uplot.js"]
    found = [assets.find(assets.digest, name) for name in named]
    assert sum(len(one.packed or one.data) for one in found if one is not None) < 100_000
    assert all(found)
    later = assets.find(assets.digest, "vendor/echarts.js")
    assert later is not None
    assert later.packed is not None
    assert len(later.packed) < 180_000
    assert assets.find(assets.digest, "vendor/echarts.NOTICE") is not None


def test_a_change_of_any_file_changes_the_address_of_all(copy: Path) -> None:
    before = Assets(copy)
    assert before.digest == Assets(STATIC).digest
    for name in ("app/dom.js", "style/tokens.css", "vendor/uplot.js", "style/mark.svg"):
        path = copy / name
        path.write_text(path.read_text() + " ")
        after = Assets(copy)
        assert after.digest != before.digest, name
        assert after.find(before.digest, "page.js") is None
        before = after


def test_what_cannot_be_put_together_is_refused(copy: Path) -> None:
    path = copy / "app" / "format.js"
    whole = path.read_text()
    for line in ("export default 1;", 'import * as all from "./dom.js";', "export { short };"):
        path.write_text(f"{line}\n{whole}")
        with pytest.raises(InvalidInputError, match=r"module app/format\.js of the page has"):
            Assets(copy)
    path.write_text(f'import {{ get }} from "./api.js";\n{whole}')
    api = copy / "app" / "api.js"
    api.write_text('import { short } from "./format.js";\n' + api.read_text())
    with pytest.raises(InvalidInputError, match=r"in a circle: .*app/format\.js > app/api\.js"):
        Assets(copy)
