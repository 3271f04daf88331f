"""How values are compared with annotations under pytest; an int passes for a float, as in PEP 484."""

import beartype

check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
