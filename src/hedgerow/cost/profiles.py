"""A machine's profile: what its steps cost in each form, kept as a readable file.

`load` reads a file of yours or one of the profiles shipped in data/profiles: figures that others published, converted
to seconds, each naming its source and licence.

The file is one JSON object: `schema`, `name`, `title`, `source`, `licence`, `note`, `key` (device, model, dtype,
engine: what was measured), `draft` {call_s, row_s} and `curves` {plain | chain | tree: curve}. A curve is a table
{rows, contexts, step_s: one list per context, between: "line" | "step"} or a roofline {floor_s, base_s, row_s,
context_s, row_context_s, row2_s, sharpness}, what is left out being 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from hedgerow.core.errors import HedgerowError, ModelError, UnknownName, UsageError
from hedgerow.core.parts import StepShape
from hedgerow.cost.model import Curve, Roofline, Table

SCHEMA = 1
FORMS: dict[str, tuple[str, ...]] = {       # which curve serves a form: its own, or the next one measured
    "plain": ("plain", "chain", "tree"), "chain": ("chain", "tree", "plain"), "tree": ("tree", "chain", "plain"),
}
_FOLDER = resources.files("hedgerow") / "data" / "profiles"


@dataclass(frozen=True)
class Draft:
    """T = calls · (h + a · width · batch): `call_s` = h, `row_s` = a.

    >>> Draft(call_s=0.5, row_s=0.25).seconds(calls=2, width=4, batch=1)
    3.0
    """

    call_s: float = 0.0
    row_s: float = 0.0

    def seconds(self, calls: int, width: int, batch: int) -> float:
        """Seconds of `calls` sequential calls of `width` rows a request."""
        return calls * (self.call_s + self.row_s * width * batch)


@dataclass(frozen=True)
class Profile:
    """What steps cost on one machine: the `CostModel` everybody asks.

    `curves` by form; leaving the causal path may cost more than any number of rows, so each form has its own. A form
    without a curve uses the next one measured; beyond its last measured row a form's curve grows as the tree's does.
    `key` says what was measured: `require` refuses another.

    Raises: UsageError without any curve, or with one for an unknown form.

    >>> p = Profile("mine", {"tree": Roofline(floor_s=1.0, row_s=0.1)}, key={"device": "cpu"})
    >>> p.step_s(StepShape([20], [0])), p.draft_s(calls=3, width=1, batch=1)
    (2.0, 0.0)
    """

    name: str
    curves: Mapping[str, Curve]
    draft: Draft = field(default_factory=Draft)
    key: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    source: str = ""
    licence: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.curves or set(self.curves) - set(FORMS):
            raise UsageError(
                f"profile {self.name!r} has curves for {sorted(self.curves)}; allowed: at least one of {sorted(FORMS)}"
            )

    def curve(self, form: Literal["plain", "chain", "tree"]) -> Curve:
        """The curve that serves a form of step."""
        return next(self.curves[name] for name in FORMS[form] if name in self.curves)

    def step_s(self, shape: StepShape) -> float:
        """Seconds of the target call."""
        own, tree = self.curve(shape.form), self.curve("tree")
        if own is tree or isinstance(own, Roofline) or sum(shape.rows) <= own.rows[-1]:
            return own.step_s(shape)
        last, context = own.rows[-1], sum(shape.contexts) / len(shape.contexts)
        return own.seconds(last, context) + max(tree.step_s(shape) - tree.seconds(last, context), 0.0)

    def draft_s(self, calls: int, width: int, batch: int) -> float:
        """Seconds of the drafter calls."""
        return self.draft.seconds(calls, width, batch)

    def edges(self) -> tuple[int, ...]:
        """Total rows after which the cost of a tree jumps: the only sizes worth cutting to; empty if it never does."""
        return self.curve("tree").edges()

    def require(self, **key: str) -> None:
        """Refuse to price another machine's or model's steps.

        Raises: UsageError naming the first thing that differs.

        >>> Profile("mine", {"tree": Roofline()}, key={"device": "A100"}).require(device="A100", model="any")
        """
        for name, value in key.items():
            if name in self.key and self.key[name] != value:
                raise UsageError(
                    f"profile {self.name!r} was measured with {name} {self.key[name]!r}, this is {value!r}; "
                    "measure a profile here, or name one made for it"
                )

    def to_json(self) -> str:
        """The file's text."""
        out = {
            "schema": SCHEMA, "name": self.name, "title": self.title, "source": self.source, "licence": self.licence,
            "note": self.note, "key": dict(self.key), "draft": asdict(self.draft),
            "curves": {form: _curve_out(curve) for form, curve in self.curves.items()},
        }
        return json.dumps(out, indent=1, ensure_ascii=False) + "\n"


def names() -> list[str]:
    """Names of the shipped profiles, sorted."""
    return sorted(entry.name.removesuffix(".json") for entry in _FOLDER.iterdir() if entry.name.endswith(".json"))


def load(name: str | Path) -> Profile:
    """A shipped profile by name, or the profile in a file.

    Raises: UnknownName where there is neither; ModelError for a file that is no profile, saying why.

    >>> load("m3pro-q8-tiles").edges()
    (8, 16, 32, 47, 64)
    """
    if str(name) in names():
        return parse((_FOLDER / f"{name}.json").read_text(encoding="utf-8"), str(name))
    path = Path(name)
    if not path.is_file():
        raise UnknownName("profile", str(name), names(), "A file of your own may be named as well")
    return parse(path.read_text(encoding="utf-8"), str(path))


def save(profile: Profile, path: Path) -> None:
    """Write a profile to a file."""
    path.write_text(profile.to_json(), encoding="utf-8")


def parse(text: str, where: str) -> Profile:
    """The profile in a JSON text; `where` names it in errors.

    Raises: ModelError for what is no profile, has another schema, or holds a key that is not known.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        schema = data.pop("schema", None)
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema}, this version reads {SCHEMA}")
        _only(data, (f.name for f in fields(Profile)), "a profile")
        curves = {form: _curve_in(curve) for form, curve in data.pop("curves", {}).items()}
        draft = data.pop("draft", {})
        _only(draft, (f.name for f in fields(Draft)), "draft")
        return Profile(**{"name": where, **data}, curves=curves, draft=Draft(**draft))
    except (ValueError, TypeError, AttributeError, KeyError, HedgerowError) as e:
        reason = f"{e.args[0]!r} is missing" if isinstance(e, KeyError) else str(e)
        raise ModelError(f"profile {where} cannot be used: {reason}") from None


def _only(data: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    allowed = sorted(known)
    for name in data:
        if name not in allowed:
            raise ValueError(f"{what} has the unknown key {name!r}; known: {', '.join(allowed)}")


def _curve_out(curve: Curve) -> dict[str, Any]:
    if isinstance(curve, Table):
        return {
            "rows": curve.rows, "contexts": curve.contexts, "step_s": curve.cells_s,
            "between": "step" if curve.steps else "line",
        }
    return {k: v for k, v in asdict(curve).items() if v not in (0.0, float("inf"))}


def _curve_in(data: Mapping[str, Any]) -> Curve:
    if "rows" not in data:
        _only(data, (f.name for f in fields(Roofline)), "a roofline")
        return Roofline(**data)
    _only(data, ("rows", "contexts", "step_s", "between"), "a table")
    if data.get("between", "line") not in ("line", "step"):
        raise ValueError(f"a table's `between` is {data['between']!r}; allowed: line, step")
    return Table(
        tuple(data["rows"]), tuple(data["contexts"]), tuple(tuple(row) for row in data["step_s"]),
        steps=data.get("between") == "step",
    )
