"""LLVM code of AMX: the sums of a block by tiles, the shapes of tiles, and the request to Linux."""
# Over 300 lines: the code of one block, whose operands lie in several ways.

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass

from strategy.cpu.dot import Dot
from strategy.host import TILE_REQUEST

ROWS, WORDS, LANES, REGISTERS = 16, 16, 16, 8  # of a tile, of a row of one, of a row of sums; tiles
WORD_BYTES, LINE_BYTES = 4, 64
REQUEST, RELEASE, BLOCK = "plevel_amx_request", "plevel_amx_release", "plevel_amx_block_"
ROUND = "plevel_amx_round"  # of a vector of float32, the bits of bfloat16
_KIND = "RuntimeError"
_REFUSED = "AMX: this processor lacks it, or its kernel does not allow it: build for the target with -mattr=-amx-tile"
# A graph of `torch.compile` runs kernels without TVM: nothing has this function there. It is named to the assembler
# alone, as TVM's own declaration of it is not weak.
_TELL = "TVMFFIErrorSetRaisedFromCStrParts"
_COMMON = f"""
@plevel_amx_granted = linkonce_odr hidden global i32 0
@plevel_amx_kind = linkonce_odr hidden constant [{len(_KIND) + 1} x i8] c"{_KIND}\\00"
@plevel_amx_text = linkonce_odr hidden constant [{len(_REFUSED) + 1} x i8] c"{_REFUSED}\\00"
@plevel_amx_parts = linkonce_odr hidden constant [1 x ptr] [ptr @plevel_amx_text]
declare i64 @syscall(i64, ...)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tilestored64(i8, ptr, i64)
define linkonce_odr hidden i32 @{REQUEST}() nounwind {{
  %known = load atomic i32, ptr @plevel_amx_granted monotonic, align 4
  %granted = icmp ne i32 %known, 0
  br i1 %granted, label %yes, label %ask
ask:
  %answer = call i64 (i64, ...) @syscall({", ".join(f"i64 {number}" for number in TILE_REQUEST)})
  %failed = icmp ne i64 %answer, 0
  br i1 %failed, label %no, label %now
now:
  store atomic i32 1, ptr @plevel_amx_granted monotonic, align 4
  br label %yes
yes:
  ret i32 0
no:
  %tell = call ptr asm ".weak {_TELL}\\0Amovq {_TELL}@GOTPCREL(%rip), $0", "=r"()
  %alone = icmp eq ptr %tell, null
  br i1 %alone, label %refused, label %told
told:
  call void %tell(ptr @plevel_amx_kind, ptr @plevel_amx_parts, i32 1)
  br label %refused
refused:
  ret i32 1
}}
define linkonce_odr hidden i32 @{RELEASE}() nounwind {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
"""
_ROUND = f"""
define linkonce_odr hidden <{LANES} x i16> @{ROUND}(<{LANES} x float> %number) alwaysinline nounwind {{
  %rounded = fptrunc <{LANES} x float> %number to <{LANES} x bfloat>
  %bits = bitcast <{LANES} x bfloat> %rounded to <{LANES} x i16>
  ret <{LANES} x i16> %bits
}}
"""
_ARGUMENTS = {"x": "a", "y": "b"}  # of which the data's tiles of a step are, and the weight's


@dataclass(frozen=True)
class Image:
    """The words [h, c, w] of an image, or of a part, that are a block's weight, `lines` of it, as wide as each other.

    Attributes:
        row_words: from one word of a pixel to the next.
        step_words: from one tile to the next.
        line_words: from one line to the next.
    """

    lines: int
    row_words: int
    step_words: int
    line_words: int


@dataclass(frozen=True)
class Block:
    """A block of sums, [rows, width], over `steps` tiles of `words` words of each row.

    Attributes:
        row_words: from one row of the data to the next.
        step_words: from one tile of the data to the next.
        panel_words: from one panel of the weight to the next.
        ahead: lines of the next panel that come into the second level at each step.
        in_columns: the weight's columns of tiles lie one behind the other, else side by side.
        adds: the steps are a part of k, and are added to the sums of the parts before, which are in memory.
        lines: lines of an image that the rows are of, as many of each, `line_words` apart.
        around: loops around the steps, the outermost first: their extents, and the words of the data from one to the
            next. Steps of the weight lie one behind the other throughout.
        phases: the parts that the places of the last loop around are dealt into in turns, and the words from one to
            the next.
        image: where the weight lies in an image, if it does. Then `around` is of it, but within each step, and steps of
            the data lie one behind the other throughout.
    """

    dot: Dot
    rows: int
    width: int
    steps: int
    words: int
    row_words: int
    step_words: int
    panel_words: int
    ahead: int
    in_columns: bool = False
    adds: bool = False
    lines: int = 1
    line_words: int = 0
    around: tuple[tuple[int, int], ...] = ()
    phases: tuple[int, int] = (1, 0)
    image: Image | None = None

    @property
    def heights(self) -> list[int]:
        """The rows of each tile of a column."""
        rows = self.rows // self.lines
        count = -(-rows // ROWS)
        height = -(-rows // count)
        return [*[height] * (count - 1), rows - height * (count - 1)] * self.lines

    @property
    def all_steps(self) -> int:
        """The steps of all loops."""
        return self.steps * math.prod(extent for extent, _ in self.around)

    def _places(self) -> list[int]:
        """The bytes from the first tile to that of each step, of the operand that loops are around."""
        step_words = self.image.step_words if self.image else self.step_words
        places = [[at * words for at in range(extent)] for extent, words in self.around]
        phases, apart = self.phases
        if phases > 1:
            places[-1] = [place // phases + place % phases * apart for place in places[-1]]
        steps = [at * step_words for at in range(self.steps)]
        # The places of an image that a step sees lie near each other, in the first level of the cache.
        loops = (steps, *places) if self.image else (*places, steps)
        return [sum(words) * WORD_BYTES for words in itertools.product(*loops)]

    @property
    def columns(self) -> int:
        return self.width // LANES

    @property
    def _row_width(self) -> int:
        """The words from one row of the weight to the next."""
        if self.image:
            return self.image.row_words
        return LANES if self.in_columns else self.width

    def _column_place(self, column: int) -> int:
        """The words from the weight's first column of tiles to another."""
        if self.image:
            line, at = divmod(column, self.columns // self.image.lines)
            return line * self.image.line_words + at * LANES
        return column * LANES * (self.steps * self.words if self.in_columns else 1)

    @property
    def symbol(self) -> str:
        kind = self.dot.intrinsic.rpartition(".")[2]
        tiles = (self.rows, self.width, self.steps, self.words)
        sizes = (*tiles, self.row_words, self.step_words, self.panel_words, self.ahead)
        lines = f"_lines_{self.lines}_{self.line_words}" if self.lines > 1 else ""
        around = "".join(f"_of_{extent}_{words}" for extent, words in self.around)
        around += f"_phases_{self.phases[0]}_{self.phases[1]}" if self.phases[0] > 1 else ""
        columns = ("_columns" if self.in_columns else "") + ("_adds" if self.adds else "")
        image = f"_image_{'_'.join(map(str, astuple(self.image)))}" if self.image else ""
        return f"{BLOCK}{kind}_{'_'.join(map(str, sizes))}{lines}{around}{columns}{image}"

    @property
    def shape_symbol(self) -> str:
        return f"plevel_amx_shape_{'_'.join(map(str, self.heights))}_{self.width}_{self.words}"

    def _sum(self, row: int, column: int) -> int:
        return row * self.columns + column

    @property
    def _data(self) -> int:
        """The first register of the data's tiles; those of the weight follow, one after the other in turns."""
        return len(self.heights) * self.columns

    def _weight(self, column: int) -> int:
        first = self._data + len(self.heights)
        return first + column % (REGISTERS - first)

    def _shapes(self) -> Iterator[tuple[int, int, int]]:
        """The registers with the rows, and the bytes of a row, of their tiles."""
        for row, height in enumerate(self.heights):
            yield self._data + row, height, self.words * WORD_BYTES
            for column in range(self.columns):
                yield self._sum(row, column), height, LANES * WORD_BYTES
        for column in range(self.columns):
            yield self._weight(column), self.words, LANES * WORD_BYTES

    @property
    def source(self) -> str:
        """LLVM code that loads the shapes of tiles, and that computes the block."""
        palette = bytearray(64)
        palette[0] = 1
        for register, rows, row_bytes in self._shapes():
            palette[16 + 2 * register] = row_bytes
            palette[48 + register] = rows
        shapes = "".join(f"\\{byte:02x}" for byte in palette)
        return f"""{_COMMON}
{_ROUND}
declare void @{self.dot.intrinsic}(i8, i8, i8)
@{self.shape_symbol}_bytes = linkonce_odr hidden constant [64 x i8] c"{shapes}", align 64
define linkonce_odr hidden i32 @{self.shape_symbol}() nounwind {{
  call void @llvm.x86.ldtilecfg(ptr @{self.shape_symbol}_bytes)
  ret i32 0
}}
{self._table}
define linkonce_odr hidden i32 @{self.symbol}(ptr %a, ptr %b, ptr %c, {"i32 %part, " * self.adds}i32 %place) nounwind {{
entry:
  %wide = sext i32 %place to i64
  %share = mul i64 %wide, {self.all_steps * self.ahead * LINE_BYTES}
  %apart = add i64 %share, {self.panel_words * WORD_BYTES}
  %p = getelementptr i8, ptr %b, i64 %apart
{"".join(self._lines_before())}  br label %loop
loop:
  %step = phi i64 [ 0, %{self._before} ], [ %next, %loop ]
{"".join(self._operands_of_a_step())}  %z = phi ptr [ %p, %{self._before} ], [ %zn, %loop ]
{"".join(self._lines_of_a_step())}  %zn = getelementptr i8, ptr %z, i64 {self.ahead * LINE_BYTES}
  %next = add nuw nsw i64 %step, 1
  %more = icmp ult i64 %next, {self.all_steps}
  br i1 %more, label %loop, label %end
end:
{"".join(self._transfers_of_sums("tilestored64", "c"))}  ret i32 0
}}
"""

    @property
    def _table(self) -> str:
        """LLVM code of the table of an operand's places, where steps are in several loops."""
        if not self.around:
            return ""
        places = ", ".join(f"i32 {place}" for place in self._places())
        return f"@{self.symbol}_places = linkonce_odr hidden constant [{self.all_steps} x i32] [{places}]"

    @property
    def _before(self) -> str:
        """The label of the code before the loop over steps."""
        return "begin" if self.adds else "entry"

    def _lines_before(self) -> Iterator[str]:
        """Zeros in the registers of sums; from the second part on, the sums so far."""
        zeros = [f"  call void @llvm.x86.tilezero(i8 {register})\n" for register in range(self._data)]
        if not self.adds:
            yield from zeros
            return
        yield "  %is_first = icmp eq i32 %part, 0\n  br i1 %is_first, label %first, label %more_parts\nfirst:\n"
        yield from zeros
        yield "  br label %begin\nmore_parts:\n"
        yield from self._transfers_of_sums("tileloadd64", "s")
        yield "  br label %begin\nbegin:\n"

    def _steps(self) -> dict[str, int]:
        """The operands whose steps lie one behind the other, with the words from one to the next."""
        found = {"x": self.step_words, "y": self.words * self._row_width}
        if self.around:
            del found["y" if self.image else "x"]
        return found

    def _operands_of_a_step(self) -> Iterator[str]:
        for name in self._steps():
            yield f"  %{name} = phi ptr [ %{_ARGUMENTS[name]}, %{self._before} ], [ %{name}n, %loop ]\n"

    def _lines_of_a_step(self) -> Iterator[str]:
        for line in range(self.ahead):
            yield f"  %z{line} = getelementptr i8, ptr %z, i64 {line * LINE_BYTES}\n"
            yield f"  call void @llvm.prefetch.p0(ptr %z{line}, i32 0, i32 2, i32 1)\n"
        if self.around:
            yield f"  %entry_of = getelementptr i32, ptr @{self.symbol}_places, i64 %step\n"
            yield "  %near = load i32, ptr %entry_of, align 4\n  %away = zext i32 %near to i64\n"
            name = "y" if self.image else "x"
            yield f"  %{name} = getelementptr i8, ptr %{_ARGUMENTS[name]}, i64 %away\n"
        top = 0
        for column in range(self.columns):
            weight = self._weight(column)
            place = self._column_place(column)
            yield from _transfer("tileloadd64", "y", f"y{column}", place, self._row_width, weight)
            for row, height in enumerate(self.heights):
                if not column:
                    line, start = divmod(top, self.rows // self.lines)
                    place, stride = line * self.line_words + start * self.row_words, self.row_words
                    yield from _transfer("tileloadd64", "x", f"x{row}", place, stride, self._data + row)
                    top += height
                yield (
                    f"  call void @{self.dot.intrinsic}"
                    f"(i8 {self._sum(row, column)}, i8 {self._data + row}, i8 {weight})\n"
                )
        for name, words in self._steps().items():
            yield f"  %{name}n = getelementptr i8, ptr %{name}, i64 {words * WORD_BYTES}\n"

    def _transfers_of_sums(self, name: str, prefix: str) -> Iterator[str]:
        top = 0
        for row, height in enumerate(self.heights):
            for column in range(self.columns):
                register = self._sum(row, column)
                place = top * self.width + column * LANES
                yield from _transfer(name, "c", f"{prefix}{register}", place, self.width, register)
            top += height


def _transfer(name: str, base: str, place: str, offset: int, stride: int, register: int) -> Iterator[str]:
    """LLVM code of a tile's load or store, `offset` words from `base`, rows `stride` words apart."""
    yield f"  %{place} = getelementptr i8, ptr %{base}, i64 {offset * WORD_BYTES}\n"
    yield f"  call void @llvm.x86.{name}(i8 {register}, ptr %{place}, i64 {stride * WORD_BYTES})\n"
