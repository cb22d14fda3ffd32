"""Functions overridden per target key, after TVM's `GenericFunc`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from strategy.target import Target

F = TypeVar("F", bound=Callable[..., Any])
_by_name: dict[str, GenericFunc] = {}
_made: list[GenericFunc] = []


class GenericFuncError(ValueError):
    """A key is registered twice, or a target has no implementation."""


class GenericFunc:
    """A function whose body is chosen by the keys of its `target` argument.

    Look-up tries the target's keys in order, then the default. Every body has the same parameters, one of which
    is called `target`; its default is the current target.

    Args:
        name: the name in messages.
        default: the body for targets that have no body of their own.
        chooses: True if the default itself distinguishes target keys.
    """

    def __init__(
        self, name: str, default: Callable[..., Any] | None = None, *, chooses: bool = False
    ) -> None:
        self.name = name
        self.default = default
        self.chooses = chooses
        self._by_key: dict[str, Callable[..., Any]] = {}
        self._target_index: int | None = None
        _made.append(self)
        if default is not None:
            self._learn(default)

    def _learn(self, func: Callable[..., Any]) -> None:
        names = list(inspect.signature(func).parameters)
        if "target" not in names:
            raise GenericFuncError(
                f"{self.name}: {getattr(func, '__name__', func)} has no parameter called 'target'"
            )
        self.__doc__ = self.__doc__ if self._target_index is not None else func.__doc__
        self._target_index = names.index("target")

    def set_default(self, func: Callable[..., Any], override: bool = False) -> GenericFunc:
        """Set the default body.

        Raises:
            GenericFuncError: there is one and `override` is not set, or `func` has no parameter called `target`.
        """
        if self.default is not None and not override:
            raise GenericFuncError(f"{self.name} already has a default: pass override=True to replace it")
        self._learn(func)
        self.default = func
        return self

    def register(
        self, keys: str | Sequence[str], func: Callable[..., Any] | None = None, *, override: bool = False
    ) -> Callable[[F], F]:
        """Register a body for each of `keys`: `func`, or the decorated function.

        Raises:
            GenericFuncError: a key has a body already and `override` is not set, or a body has no parameter called
                `target`.
        """
        wanted = [keys] if isinstance(keys, str) else list(keys)

        def add(body: F) -> F:
            for key in wanted:
                if key in self._by_key and not override:
                    raise GenericFuncError(
                        f"{self.name} is already registered for {key!r}: pass override=True to replace it"
                    )
            self._learn(body)
            self._by_key.update(dict.fromkeys(wanted, body))
            return body

        if func is not None:
            add(func)
        return add

    def extend(self, key: str) -> Callable[[F], F]:
        """Register the decorated function for `key` on top of the body that it has, or of the default.

        It gets that body as its first argument. Several packages may extend a function, one after the other.

        Raises:
            GenericFuncError: there is no such body.
        """
        before = self._by_key.get(key, self.default)
        if before is None:
            raise GenericFuncError(f"{self.name} has no body for {key!r} to extend: register one")

        def add(body: F) -> F:
            self.register(key, partial(body, before), override=True)
            return body

        return add

    @property
    def bodies(self) -> tuple[Callable[..., Any] | None, dict[str, Callable[..., Any]]]:
        """The default body and those by key, as they are now."""
        return self.default, dict(self._by_key)

    def dispatch(self, target: Target) -> Callable[..., Any]:
        """The body for `target`; raise as `find`."""
        return self.find(target)[1]

    def find(
        self, target: Target, skip: Collection[str] = ()
    ) -> tuple[str | None, Callable[..., Any]]:
        """The matching key of `target` (None for the default) and the body.

        For a body with several keys, the key is the first of them. Keys in `skip` are ignored.

        Raises:
            GenericFuncError: no key has a body, and there is no default.
        """
        for key in target.keys:
            if key in self._by_key and key not in skip:
                body = self._by_key[key]
                return next(k for k, b in self._by_key.items() if b is body), body
        if self.default is None:
            raise GenericFuncError(
                f"{self.name} has no implementation for target {target} (keys {', '.join(target.keys)}); "
                f"registered: {', '.join(sorted(self._by_key)) or 'none'}"
            )
        return None, self.default

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        index = self._target_index
        target = kwargs.get("target")
        if target is None and index is not None and index < len(args):
            target = args[index]
        if target is None and (target := Target.current()) is not None:
            kwargs["target"] = target
        if not isinstance(target, Target):
            raise GenericFuncError(
                f"{self.name} needs a Target as its argument 'target', got {target!r:.80}: "
                "give one, or call it within 'with target:'"
            )
        return self.dispatch(target)(*args, **kwargs)

    def __repr__(self) -> str:
        return f"GenericFunc({self.name}: {', '.join(['default', *self._by_key])})"


def get_native_generic_func(name: str) -> GenericFunc:
    """The generic function of a name, created if there is none."""
    if name not in _by_name:
        _by_name[name] = GenericFunc(name)
    return _by_name[name]


def override_native_generic_func(
    name: str, *, override: bool = False
) -> Callable[[Callable[..., Any]], GenericFunc]:
    """Decorator that makes the function the default of the generic function `name`.

    Raises:
        GenericFuncError: it already has a default and `override` is not set.
    """

    def decorate(func: Callable[..., Any]) -> GenericFunc:
        return get_native_generic_func(name).set_default(func, override)

    return decorate


def keep_bodies() -> Callable[[], None]:
    """Remember the bodies of all functions; what is returned puts them back."""
    kept = [(one, *one.bodies) for one in _made]

    def put_back() -> None:
        for one, default, by_key in kept:
            one.default, one._by_key = default, by_key

    return put_back


def generic_func(func: Callable[..., Any]) -> GenericFunc:
    """Decorator that makes a generic function with `func` as its default."""
    return GenericFunc(func.__name__, func)
