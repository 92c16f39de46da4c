"""The templates of the formats, and the files that go into them as they are."""

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = files("perfsuite.report.formats") / "templates"


def render(name: str, **values: Any) -> str:
    """Return a template filled in; every value is escaped where that is HTML or SVG."""
    return _environment().get_template(name).render(values)


@cache
def read(name: str) -> str:
    """Return a file that lies beside the templates."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    # Imported here, because a session that only measures does not need it.
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader("perfsuite.report.formats"),
        autoescape=select_autoescape(disabled_extensions=("css.j2", "tex.j2"), default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
