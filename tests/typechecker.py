"""How values are compared with annotations under pytest; an int passes for a float, as in PEP 484."""

import beartype

_check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


def check(function):
    """The function, checked; not the fields of dataclasses, which JAX rebuilds from shapes and axes."""
    return function if function.__name__ == "__init__" else _check(function)
