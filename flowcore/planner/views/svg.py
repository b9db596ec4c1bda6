"""A plan as an SVG picture, for places that show pictures and draw no Mermaid.

Bounded stages are in one row, live queries in the row below. In each box operators go downwards from sources
to sinks. A thick arrow is a blocking edge or a cut. Lengths are pixels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Operator, PythonOperator, Read, Write
from flowcore.escaping import html_text
from flowcore.planner.model import BoundedStage, PlanData
from flowcore.planner.views.details import EdgeDetail, PartDetail, collect_details

__all__ = ["render_svg"]

_WIDTH, _HEIGHT = 250, 46  # of an operator
_GAP, _DOWN, _MARGIN, _TITLE = 20, 44, 16, 44
_CHARACTERS = 40  # that fit into an operator
_STYLE = """
text { font: 11px sans-serif; fill: #222 } .name { font-weight: bold } .label { fill: #555 }
.batch { fill: #f3f0e6; stroke: #a89a6b } .live { fill: #e8f1f8; stroke: #6b93a8 }
.node { fill: #fff; stroke: #777 } .end { fill: #eef5ea; stroke: #777 }
.python { fill: #fdf0e2; stroke: #b0722a }
.edge { fill: none; stroke: #777; marker-end: url(#tip) } .blocking { stroke: #b03030; stroke-width: 3 }
.cut { stroke: #3b6ea5; stroke-width: 3 }
"""
_TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#777"/></marker>'
)


def render_svg(plan: PlanData) -> str:
    """The picture, as the text of an SVG file."""
    boxes = _placed(collect_details(plan))
    made = {
        node: box.place(node)
        for box in boxes
        if isinstance(box.part.runs, BoundedStage)
        for node in box.part.runs.operators
    }
    width = max((box.x + box.width for box in boxes), default=0) + _MARGIN
    height = max((box.y + box.height for box in boxes), default=0) + _MARGIN
    # Edges that cross boxes are drawn over these and below the operators.
    layers = [line for box in boxes for line in _frame(box)]
    layers += [line for box in boxes for edge in box.part.edges for line in _edge(edge, box, made)]
    sinks = {sink.name: box.place(sink) for box in boxes for sink in box.part.runs.sinks}
    layers += [line for box in boxes for source in box.part.runs.sources for line in _cut(source, box, sinks)]
    layers += [line for box in boxes for node in box.levels for line in _operator(node, box)]
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, f"<style>{_STYLE}</style><defs>{_TIP}</defs>", *layers, "</svg>"])


@dataclass(frozen=True, slots=True)
class _Box:
    """A stage or query: its position, and the row and column of each operator in it."""

    part: PartDetail
    levels: dict[Operator, tuple[int, int]]
    x: int
    y: int

    @property
    def width(self) -> int:
        columns = 1 + max(across for _, across in self.levels.values())
        return columns * (_WIDTH + _GAP) + _GAP

    @property
    def height(self) -> int:
        rows = 1 + max(down for down, _ in self.levels.values())
        return _TITLE + rows * (_HEIGHT + _DOWN) - _DOWN + _GAP

    def place(self, node: Operator) -> tuple[int, int]:
        down, across = self.levels[node]
        return self.x + _GAP + across * (_WIDTH + _GAP), self.y + _TITLE + down * (_HEIGHT + _DOWN)


def _placed(found: tuple[PartDetail, ...]) -> list[_Box]:
    boxes: list[_Box] = []
    top = _MARGIN
    for bounded in (True, False):
        left, bottom = _MARGIN, top
        for part in found:
            if isinstance(part.runs, BoundedStage) is bounded:
                box = _Box(part, _levels(part), left, top)
                boxes.append(box)
                left += box.width + _GAP
                bottom = max(bottom, top + box.height + _DOWN)
        top = bottom
    return boxes


def _levels(part: PartDetail) -> dict[Operator, tuple[int, int]]:
    levels: dict[Operator, tuple[int, int]] = {}
    taken: dict[int, int] = {}
    for node in part.runs.operators:
        down = max((levels[parent][0] + 1 for parent in node.inputs if parent in levels), default=0)
        levels[node] = down, taken.get(down, 0)
        taken[down] = levels[node][1] + 1
    return levels


def _frame(box: _Box) -> Iterator[str]:
    runs = box.part.runs
    if isinstance(runs, BoundedStage):
        kind, how = "batch", f"batch, starts {runs.start.value}"
    else:
        kind, how = "live", f"{runs.mode.value}, {runs.split.value}, checkpoint {runs.checkpoint.value}"
    yield f'<rect class="{kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>'
    lines = f"stage {box.part.number}: {runs.name}", how
    yield from _text(lines, box.x + _GAP, box.y + 18, (_CHARACTERS - 2) * box.width // _WIDTH)


def _operator(node: Operator, box: _Box) -> Iterator[str]:
    x, y = box.place(node)
    kind = (
        "end" if isinstance(node, (Read, Write)) else "python" if isinstance(node, PythonOperator) else "node"
    )
    yield f"<g><title>{html_text(f'{node.name}: {node.describe()}')}</title>"
    yield f'<rect class="{kind}" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>'
    yield from _text((node.name, node.describe()), x + 8, y + 19, _CHARACTERS)
    yield "</g>"


def _edge(edge: EdgeDetail, box: _Box, made: dict[Operator, tuple[int, int]]) -> Iterator[str]:
    sender, receiver = edge.sender, edge.receiver
    if isinstance(sender, KafkaTopic) or isinstance(receiver, KafkaTopic):
        return
    blocking = edge.kind.value == "blocking"
    start, end = made[sender] if blocking else box.place(sender), box.place(receiver)
    far = not blocking and end[1] - start[1] > _HEIGHT + _DOWN
    path, label_at = (_around if far else _into_the_side if blocking else _down)(start, end)
    kind = "edge blocking" if blocking else "edge"
    yield f'<path class="{kind}" d="{path}"/>'
    outcomes = (edge.kind.value if blocking else edge.elements.value, edge.copy.value)
    label = ", ".join(value for value in outcomes if value != "none")
    if label:
        yield f'<text class="label" x="{label_at[0]}" y="{label_at[1]}">{html_text(label)}</text>'


def _cut(source: Read, box: _Box, sinks: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """The arrow from the sink that writes the topic of a cut to the source that reads it."""
    if source.written_by is None:
        return
    (x1, y1), (x2, y2) = sinks[source.written_by.name], box.place(source)
    x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
    yield f'<path class="edge cut" d="M{x1},{y1} C{x1 + 2 * _GAP},{y1} {x2 - 2 * _GAP},{y2} {x2},{y2}"/>'
    yield f'<text class="label" x="{x1 + 4}" y="{y1 - 6}">cut</text>'


def _down(start: tuple[int, int], end: tuple[int, int]) -> tuple[str, tuple[int, int]]:
    """The path to an operator below, and the position of its label."""
    x1, y1, x2, y2 = start[0] + _WIDTH // 2, start[1] + _HEIGHT, end[0] + _WIDTH // 2, end[1]
    half = (y2 - y1) // 2
    label = (x1 + x2) // 2 + 6, (y1 + y2) // 2 + 4
    return f"M{x1},{y1} C{x1},{y1 + half} {x2},{y2 - half} {x2},{y2}", label


def _around(start: tuple[int, int], end: tuple[int, int]) -> tuple[str, tuple[int, int]]:
    """The path past the operators in between, on their right."""
    x1, y1, x2, y2 = start[0] + _WIDTH, start[1] + _HEIGHT // 2, end[0] + _WIDTH, end[1] + _HEIGHT // 2
    return f"M{x1},{y1} C{x1 + _GAP},{y1} {x2 + _GAP},{y2} {x2},{y2}", (x2 + 4, y2 - 6)


def _into_the_side(start: tuple[int, int], end: tuple[int, int]) -> tuple[str, tuple[int, int]]:
    """The path from one box into another."""
    x1, y1, x2, y2 = start[0] + _WIDTH // 2, start[1] + _HEIGHT, end[0], end[1] + _HEIGHT // 2
    turn = f"C{x1},{y1 + _DOWN} {x2 - _GAP},{y1 + _DOWN} {x2 - _GAP // 2},{y1 + 2 * _DOWN}"
    return f"M{x1},{y1} {turn} L{x2 - _GAP // 2},{y2 - 8} L{x2},{y2}", (x1 + 6, y1 + _DOWN)


def _text(lines: tuple[str, str], x: int, y: int, characters: int) -> Iterator[str]:
    for number, (kind, line) in enumerate(zip(("name", "label"), lines, strict=True)):
        short = line if len(line) <= characters else f"{line[: characters - 1]}…"
        yield f'<text class="{kind}" x="{x}" y="{y + 15 * number}">{html_text(short)}</text>'
