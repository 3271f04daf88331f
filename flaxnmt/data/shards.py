"""A tokenised corpus on disk: flat token arrays with offsets, memory-mapped, made once for a run.

A directory holds `source.tokens` and `target.tokens` (all sentences end to end, each closed by eos),
`source.offsets` and `target.offsets` (int64, one more than there are pairs; no target where there is one language),
`lines` (int32, where a pair came from), `starts` (one byte per pair: which of them open a paragraph or a document) and
`corpus.json`.
"""

import json
import logging
import os
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from flaxnmt.data.documents import Document
from flaxnmt.errors import DataError, RunError
from flaxnmt.symbols import EOS
from flaxnmt.typing import Int

log = logging.getLogger(__name__)

PARAGRAPH, DOCUMENT = 1, 2
BLOCK = 4096
SIDES = ("source", "target")
META = "corpus.json"

Encoder = Callable[[list[str]], list[list[int]]]


@dataclass(frozen=True)
class TokenArray:
    """Sentences of one language: sentence i is `tokens[offsets[i]:offsets[i + 1]]`, eos included."""

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_lists(cls, sentences: Iterable[Sequence[int]]) -> "TokenArray":
        """Sentences without eos, as a tokenizer gives them; eos is appended."""
        return cls(*_flatten(sentences, np.int32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int | np.integer) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @cached_property
    def lengths(self) -> Int[np.ndarray, "P"]:
        """Tokens of each sentence, eos included."""
        return np.diff(self.offsets).astype(np.int32)

    def padded(self, indices: Int[np.ndarray, "B"], length: int) -> Int[np.ndarray, "B L"]:
        """Rows of the given sentences, padded right with 0; index -1 is an empty row.

        A sentence longer than `length` is cut, and the cut row ends with eos too.
        """
        rows = np.where(indices >= 0, indices, 0)
        sizes = np.where(indices >= 0, self.offsets[rows + 1] - self.offsets[rows], 0)
        columns = np.arange(length)
        inside = columns < sizes[:, None]
        padded = np.zeros((len(indices), length), np.int32)
        padded[inside] = self.tokens[(self.offsets[rows][:, None] + columns)[inside]]
        padded[sizes > length, -1] = EOS
        return padded


@dataclass(frozen=True)
class TokenCorpus:
    """Sentence pairs as token ids, with the documents and paragraphs that they stand in.

    Attributes:
      target: None where only the source is known.
      lines: line number of each pair, for messages.
      starts: flags `PARAGRAPH` and `DOCUMENT` of the pairs that open one.
    """

    source: TokenArray
    target: TokenArray | None
    lines: np.ndarray
    starts: np.ndarray

    @classmethod
    def open(cls, directory: str | os.PathLike) -> "TokenCorpus":
        """Maps a directory that `tokenize_corpus` wrote; nothing is read before it is used.

        Raises:
          RunError: the directory is missing, half written or of another format.
        """
        directory = Path(directory)
        meta = _read_meta(directory)
        if meta is None:
            raise RunError(f"{directory}: no tokenised corpus here; remove the directory and start again")
        pairs = meta["pairs"]

        def side(name: str) -> TokenArray:
            tokens = _map(directory / f"{name}.tokens", np.dtype(meta["dtype"]), meta[f"{name}_tokens"])
            return TokenArray(tokens, _map(directory / f"{name}.offsets", np.dtype(np.int64), pairs + 1))

        return cls(
            side("source"),
            side("target") if "target_tokens" in meta else None,
            _map(directory / "lines", np.dtype(np.int32), pairs),
            _map(directory / "starts", np.dtype(np.uint8), pairs),
        )

    def __len__(self) -> int:
        return len(self.source)

    def checksum(self) -> str:
        """CRC-32 of all token ids and lengths in eight hexadecimal digits, wherever the corpus was made."""
        crc = 0
        for side in filter(None, (self.source, self.target)):
            for array in (side.tokens, side.offsets):
                crc = zlib.crc32(np.ascontiguousarray(array), crc)
        return f"{crc:08x}"

    @cached_property
    def document_offsets(self) -> Int[np.ndarray, "offsets"]:
        """Index of the first pair of each document, then the number of pairs."""
        return np.append(np.flatnonzero(self.starts & DOCUMENT), len(self))


def file_stamp(path: str | os.PathLike) -> dict:
    """Name, size and modification time of an input file, for the fingerprint of a corpus."""
    stat = os.stat(path)
    return {"name": os.path.basename(path), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def tokenize_corpus(
    documents: Iterable[Document],
    encode_source: Encoder,
    encode_target: Encoder | None,
    directory: str | os.PathLike,
    *,
    vocab_size: int,
    fingerprint: dict,
    workers: int = 0,
    progress: bool = True,
) -> TokenCorpus:
    """Tokenises documents into `directory`, or opens it if it was made with the same fingerprint.

    Documents are read as a stream and encoded by threads in blocks, so memory does not grow with the
    corpus. Threads are as fast as processes here, since sentencepiece lets go of the interpreter's lock,
    and they need neither pickling nor a guarded main module. The directory appears when it is whole.
    One process of a run calls this; the others wait for it and `TokenCorpus.open` the result.

    Args:
      encode_source, encode_target: lists of sentences to lists of token ids, without eos; called from
        several threads at once, so each call should use one (`partial(tokenizer.encode, threads=1)`). Without the
        second the corpus has sources alone.
      vocab_size: ids are below this; up to 65536 they take two bytes each.
      fingerprint: JSON values that name everything that the tokens depend on, such as the tokenizer's hash
        and the `file_stamp` of each input; one that differs makes the corpus anew.
      workers: threads; 0 is one per core.

    Raises:
      DataError: there are no pairs, a sentence has no target, or the directory cannot be written.
    """
    directory = Path(directory)
    fingerprint = json.loads(json.dumps({"vocab_size": vocab_size} | fingerprint))
    found = _read_meta(directory)
    if found is not None:
        old = found["fingerprint"]
        keys = sorted(old.keys() | fingerprint.keys())
        changed = [key for key in keys if old.get(key) != fingerprint.get(key)]
        if not changed:
            log.info("%s: %d tokenised pairs are reused", directory, found["pairs"])
            return TokenCorpus.open(directory)
        log.info("%s: %s changed since it was tokenised; it is made anew", directory, ", ".join(changed))

    partial = directory.with_name(directory.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)
        encoders = tuple(encode for encode in (encode_source, encode_target) if encode is not None)
        texts = _blocks(documents, with_targets=encode_target is not None)
        blocks = _encode(texts, encoders, dtype, workers or os.cpu_count() or 1)
        counts = _write(blocks, partial, SIDES[: len(encoders)], directory.name, progress)
        if not counts["pairs"]:
            raise DataError(f"{directory}: the corpus has no sentence pairs; check the training files")
        meta = {"format": 1, "dtype": dtype.name, **counts, "fingerprint": fingerprint}
        (partial / META).write_text(json.dumps(meta, indent=1))
        if directory.exists():
            (directory / META).unlink(missing_ok=True)  # so that half a removal is never taken for a corpus
            shutil.rmtree(directory)
        partial.rename(directory)
    except OSError as error:
        raise DataError(f"{directory}: cannot make the tokenised corpus: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    log.info("%s: %d pairs tokenised", directory, counts["pairs"])
    return TokenCorpus.open(directory)


class _Text(NamedTuple):
    source: list[str]
    target: list[str]
    lines: list[int]
    starts: list[int]


class _Encoded(NamedTuple):
    sides: tuple[tuple[np.ndarray, np.ndarray], ...]
    lines: np.ndarray
    starts: np.ndarray


def _blocks(documents: Iterable[Document], with_targets: bool) -> Iterator[_Text]:
    block = _Text([], [], [], [])
    for document in documents:
        start = DOCUMENT | PARAGRAPH
        for paragraph in document.paragraphs:
            for sentence in paragraph:
                if with_targets and sentence.target is None:
                    raise DataError(f"line {sentence.line}: a training sentence has no target; give one")
                block.source.append(sentence.source)
                if with_targets:
                    block.target.append(sentence.target)
                block.lines.append(sentence.line)
                block.starts.append(start)
                start = 0
                if len(block.lines) == BLOCK:
                    yield block
                    block = _Text([], [], [], [])
            start = start or PARAGRAPH
    if block.lines:
        yield block


def _flatten(sentences: Iterable[Sequence[int]], dtype) -> tuple[np.ndarray, np.ndarray]:
    """Tokens end to end with an eos after each sentence, and their offsets."""
    closed = [[*sentence, EOS] for sentence in sentences]
    offsets = np.zeros(len(closed) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, closed), np.int64, len(closed)), out=offsets[1:])
    return np.fromiter(chain.from_iterable(closed), dtype, offsets[-1]), offsets


def _encode(blocks: Iterator[_Text], encoders: tuple, dtype: np.dtype, workers: int) -> Iterator[_Encoded]:
    """Encoded blocks in order, at most two per worker under way."""

    def encode(block: _Text) -> _Encoded:
        return _Encoded(
            tuple(_flatten(encode(text), dtype) for encode, text in zip(encoders, block)),
            np.array(block.lines, np.int32),
            np.array(block.starts, np.uint8),
        )

    waiting: deque[Future] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for block in blocks:
            waiting.append(pool.submit(encode, block))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _write(
    blocks: Iterator[_Encoded], directory: Path, sides: tuple[str, ...], label: str, progress: bool
) -> dict[str, int]:
    counts = {"pairs": 0} | {f"{side}_tokens": 0 for side in sides}
    names = [f"{side}.{part}" for side in sides for part in ("tokens", "offsets")] + ["lines", "starts"]
    with ExitStack() as stack:
        files = {name: stack.enter_context(open(directory / name, "wb")) for name in names}
        for side in sides:
            files[f"{side}.offsets"].write(np.zeros(1, np.int64))
        bar = tqdm(desc=f"tokenising {label}", unit=" pairs", unit_scale=True, disable=not progress)
        stack.enter_context(bar)
        for block in blocks:
            for side, (tokens, offsets) in zip(sides, block.sides, strict=True):
                files[f"{side}.tokens"].write(tokens)
                files[f"{side}.offsets"].write(counts[f"{side}_tokens"] + offsets[1:])
                counts[f"{side}_tokens"] += len(tokens)
            files["lines"].write(block.lines)
            files["starts"].write(block.starts)
            counts["pairs"] += len(block.lines)
            bar.update(len(block.lines))
    return counts


def _read_meta(directory: Path) -> dict | None:
    """What `corpus.json` says, or None where it is missing or not ours."""
    try:
        meta = json.loads((directory / META).read_text())
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("format") == 1 else None


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    size = path.stat().st_size if path.exists() else 0
    if size != count * dtype.itemsize:
        expected = count * dtype.itemsize
        raise RunError(f"{path}: {size} bytes, not {expected}; remove {path.parent} and start again")
    return np.memmap(path, dtype, "r", shape=(count,)).view(np.ndarray)
