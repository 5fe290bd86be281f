"""Names for classes: what a recipe or a flag calls a guide or an advantage, with its arguments checked."""

import inspect
from collections.abc import Callable
from importlib import import_module
from numbers import Real
from typing import Any, Generic, TypeVar

from sage_rlvr.errors import UserError
from sage_rlvr.names import near

T = TypeVar("T")


class Registry(Generic[T]):
    """name → subclass of ``parent``. ``word`` is what messages call one, "guide" or "advantage"."""

    def __init__(self, word: str, parent: type[T]) -> None:
        self.word, self.parent = word, parent
        self.classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: makes a class known by name to ``make``, the config and the command line."""

        def register(cls: type[T]) -> type[T]:
            if not self._is_one(cls):
                raise UserError(
                    f"register_{self.word}({name!r}) takes a subclass of sage_rlvr.{self.parent.__name__}, not {cls!r}."
                )
            if self.classes.get(name, cls).__qualname__ != cls.__qualname__:
                other = self.classes[name].__name__
                raise UserError(f"the {self.word} {name!r} is registered already ({other}); choose another name.")
            cls.name = name  # type: ignore[attr-defined]
            self.classes[name] = cls
            return cls

        return register

    def get(self, name: str) -> type[T]:
        """The class behind a registered name or a "package.module:Class"."""
        if name in self.classes:
            return self.classes[name]
        module, colon, attribute = str(name).partition(":")
        if not colon:
            known = near(str(name), sorted(self.classes))
            raise UserError(f"{self.word}={name!r} is unknown: {known}, or write 'package.module:Class'.")
        try:
            cls = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as e:
            raise UserError(
                f"{self.word}={name!r} could not be loaded ({e}); it must be an importable 'package.module:Class': for one in "
                "the working directory, name its module before the verb, sage-rlvr --import MODULE …, or put the folder on "
                "PYTHONPATH."
            ) from e
        if not self._is_one(cls):
            raise UserError(f"{self.word}={name!r} is not a subclass of sage_rlvr.{self.parent.__name__}.")
        if "name" not in vars(cls):
            cls.name = name
        return cls

    def make(self, name: str, **args: Any) -> T:
        """One of them, its arguments checked: by name, and numbers to be some."""
        cls = self.get(name)
        known = inspect.signature(cls).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            for unknown in (a for a in args if a not in known):
                takes = ", ".join(known) or "none"
                raise UserError(f"{self.word} {name!r} has no argument {unknown!r}; it takes {takes}.")
        for field, value in args.items():  # from a recipe or a flag: YAML reads 1e-1 as text
            number = field in known and known[field].annotation in (int, float)
            if number and not (isinstance(value, Real) and value == value):
                raise UserError(f"{self.word} {name!r}: {field}={value!r} is not a number; write one, such as 0.3.")
        return cls(**args)

    def _is_one(self, cls: Any) -> bool:
        return isinstance(cls, type) and issubclass(cls, self.parent)
