"""The parameters of an estimator as scikit-learn's tools read and set them: ``get_params``, ``set_params``, ``clone``.

The constructor's arguments are kept as they were given. A setting of a section is named ``section__key``, as in
``train__epochs`` or ``loss__tau``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from topshelf.errors import ConfigError
from topshelf.reprs import cut

_MOST_VALUE = 120  # characters of a parameter in a repr


class Parameters:
    """Base of an estimator whose ``_given`` are its constructor's arguments."""

    _given: dict[str, Any]
    _defaults: ClassVar[Mapping[str, Any]]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments as they were given; with ``deep`` also ``section__key`` of each section."""
        nested = {
            f"{section}__{key}": value
            for section, values in self._given.items()
            if deep and isinstance(values, Mapping)
            for key, value in values.items()
        }
        return {**self._given, **nested}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; a fitted model stays as it is until the next ``fit``.

        ``train__epochs=5`` sets one key of a section and keeps the others.
        """
        given = {**self._given, **{name: value for name, value in params.items() if "__" not in name}}
        for name, value in params.items():
            section, separator, key = name.partition("__")
            if separator:
                given[section] = {**_as_section(name, given.get(section)), key: value}
        self._configure(given)
        return self

    def _configure(self, given: dict[str, Any]) -> None:
        """Take these arguments, or refuse them and keep the old ones."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's tools ask of an estimator; only they call it."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(two_d_array=False),
        )

    def _call(self) -> str:
        """The call that makes such an estimator, without the defaults."""
        changed = {name: value for name, value in self._given.items() if self._defaults.get(name, ...) != value}
        values = ", ".join(f"{name}={cut(repr(value), _MOST_VALUE)}" for name, value in changed.items())
        return cut(f"{type(self).__name__}({values})", 500)


def _as_section(name: str, value: Any) -> dict[str, Any]:
    """A section's settings: a name alone is a component with its defaults."""
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    if isinstance(value, str):
        return {"name": value}
    section = name.partition("__")[0]
    raise ConfigError(
        f"{name} sets a key of {section}, which must then be a name or settings, got {value!r}; set {section} as a "
        "whole"
    )
