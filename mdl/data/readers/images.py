"""Pictures in folders, one folder a class: images:PATH?size=32x32 reads PNG and JPEG files below PATH.

All are brought to one size and kept as their pixels, 8 bits each; they go through files, so that memory does not grow
with their number. A file that is no picture, or claims more pixels than any camera has, is refused, or left out if the
user asked for that.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.config import LARGEST_SEED
from mdl.data.readers.archive import list_files
from mdl.data.spec import split_names
from mdl.data.tables.stretches import below_sides, find_sides, name_from_path, refuse_one_class_by_two_names
from mdl.data.windows import LARGEST_WINDOWS_BYTES, DataSet, assemble_data, number_names
from mdl.errors import ConfigError, DataError
from mdl.reading import Tally, read_bytes, shorten
from mdl.writing import open_private

Pixels: TypeAlias = NDArray[np.uint8]

_ENDINGS = (".png", ".jpg", ".jpeg")
# A picture of 64 megapixels in colour takes 200 MB while it is decoded; its file is far smaller.
MOST_PIXELS = 1 << 26
_LARGEST_FILE_BYTES = 128 << 20
_MODES = {"rgb": "RGB", "grey": "L"}
_CHANNELS = {"rgb": ("red", "green", "blue"), "grey": ("grey",)}
# Pictures written together.
_AT_ONCE = 64


class ImageOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """size: HEIGHTxWIDTH of all after resizing; without it all must have one. color: the channels that are kept.

    label, subject: `path` or `path:N`, the name of the first, or Nth, folder below PATH; subject also `file`. classes:
    all classes in their order, so that a device may hold some of them. bad: treatment of a file that is no picture.
    split, seed: the choice of test pictures; without subjects the last fifth of each class by its files' names. If the
    folders below PATH are train and val or test, they decide, and `path` is the folder below them.
    """

    size: Annotated[str, msgspec.Meta(pattern=r"^([1-9][0-9]{0,3}x[1-9][0-9]{0,3})?$")] = ""
    color: Literal["rgb", "grey"] = "rgb"
    label: Annotated[str, msgspec.Meta(pattern=r"^path(:[1-9][0-9]?)?$")] = "path"
    subject: Annotated[str, msgspec.Meta(pattern=r"^(path(:[1-9][0-9]?)?|file)?$")] = ""
    classes: str = ""
    bad: Literal["refuse", "skip"] = "refuse"
    split: Literal["auto", "subject", "time"] = "auto"
    seed: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SEED)] = 0

    @property
    def shape(self) -> tuple[int, int] | None:
        """(height, width), or None if the pictures decide."""
        height, _, width = self.size.partition("x")
        return (int(height), int(width)) if width else None


def find_images(path: str) -> list[Path]:
    """Return all pictures at or below a path, by name. Raises DataError if there is none."""
    root = Path(path).expanduser()
    files = [file for file in list_files(root) if file.suffix.lower() in _ENDINGS]
    if not files:
        raise DataError(f"{path}: no picture; expected a folder with {', '.join(_ENDINGS)}, one folder for each class")
    return files


def read_images(path: str, options: ImageOptions, scratch: Path) -> DataSet:
    """Read the data set at `path`; x: uint8 (n, channels, height, width), mapped. scratch: a folder for the pixels.

    Raises ConfigError or DataError naming the file.
    """
    files, root = find_images(path), str(Path(path).expanduser())
    sides, split = find_sides(root, files) if options.split == "auto" else (None, "")
    label, subject = ((below_sides if split else str)(said) for said in (options.label, options.subject))
    labels = [name_from_path(label, root, file) for file in files]
    pixels = scratch / "pixels.u8"
    try:
        kept, shape, bad = _decode_all(files, options, pixels)
        tally = _count(Path(root), files, bad)
        everything = np.memmap(pixels, np.uint8, "r", shape=(len(kept), *shape))
        classes, y = _number_labels([labels[row] for row in kept], options, path)
        people = [name_from_path(subject, root, files[row]) for row in kept] if subject else None
        return assemble_data(
            Path(root).resolve().stem,
            lambda rows, side: _gather(everything, np.flatnonzero(rows), scratch / f"{side}_x.npy"),
            (classes, y),
            None if people is None else np.array(people),
            None,
            np.arange(len(kept)),
            how=options.split,
            given=None if sides is None else sides[kept],
            seed=options.seed,
            description=f"pictures below {path}",
            channels=_CHANNELS[options.color],
            notes=(*filter(None, [split]), tally.line()),
            left_out=tally.samples(),
        )
    except DataError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None
    finally:
        pixels.unlink(missing_ok=True)


def read_image(file: Path, color: str, size: tuple[int, int] | None) -> Pixels:
    """Read a picture as uint8 (channels, height, width), upright. size: (height, width).

    Raises DataError; ConfigError without Pillow.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ConfigError("reading pictures needs Pillow: pip install 'mdl[images]'") from None
    content = read_bytes(file, _LARGEST_FILE_BYTES, "a picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings on sizes, which are checked here
            image = Image.open(io.BytesIO(content), formats=("PNG", "JPEG"))
        with image:
            if image.width * image.height > MOST_PIXELS:
                raise DataError(f"{file}: {image.width} x {image.height} pixels; at most {MOST_PIXELS:,} are decoded")
            if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"):
                raise DataError(f"{file}: its pixels are {image.mode}; expected 8 bits (others go into an .npz)")
            if size is not None:
                # A photograph is decoded at an eighth of its size if that is enough; later it may be turned.
                image.draft(_MODES[color], (2 * max(size), 2 * max(size)))
            upright = ImageOps.exif_transpose(image).convert(_MODES[color])
            if size is not None and upright.size != (size[1], size[0]):
                upright = upright.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            values = np.asarray(upright, np.uint8)
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 (decoders raise whatever a damaged file makes them)
        raise DataError(f"{file}: no picture that can be read ({shorten(error)})") from None
    return np.ascontiguousarray(np.moveaxis(values.reshape(*values.shape[:2], -1), 2, 0))


def iterate_images(path: str, shape: Sequence[int]) -> Iterator[tuple[Path, Pixels]]:
    """Yield the pictures at or below a path, without labels, for a model that takes (channels, height, width)."""
    color = {len(names): color for color, names in _CHANNELS.items()}.get(shape[0])
    if color is None:
        raise DataError(f"{path}: the model takes images of {shape[0]} channels; pictures have 1 (grey) or 3")
    for file in find_images(path):
        yield file, read_image(file, color, (shape[1], shape[2]))


def _decode_all(
    files: Sequence[Path], options: ImageOptions, into: Path
) -> tuple[list[int], tuple[int, int, int], list[Path]]:
    """Return (rows of the files that are pictures, the shape of each, other files); write the pixels into a file."""
    size, first, kept, bad = options.shape, None, list[int](), list[Path]()
    channels = len(_CHANNELS[options.color])
    if size is not None:
        _check_size(len(files), channels, size)
    with open_private(into, "xb") as out:
        for row, file in enumerate(files):
            try:
                picture = read_image(file, options.color, options.shape)
            except DataError as error:
                if options.bad == "refuse":
                    raise DataError(f"{error}; ?bad=skip leaves such files out") from None
                bad.append(file)
                continue
            if size is None:
                size, first = (picture.shape[1], picture.shape[2]), file
                _check_size(len(files), channels, size)
            if picture.shape[1:] != size:
                raise DataError(
                    f"{file}: {picture.shape[1]}x{picture.shape[2]} pixels, but {first} has {size[0]}x{size[1]}; bring "
                    f"all to one size (height x width) with ?size={size[0]}x{size[1]}"
                )
            out.write(picture.tobytes())
            kept.append(row)
    if size is None or not kept:
        raise DataError(f"none of the {len(files)} files is a picture that can be read")
    return kept, (channels, *size), bad


def _count(root: Path, files: Sequence[Path], bad: Sequence[Path]) -> Tally:
    """Count the pictures, and other files beside them."""
    tally = Tally("pictures")
    tally.see(len(files))
    for file in bad:
        tally.leave("that cannot be read", sample=str(file))
    for file in set(list_files(root)).difference(files):
        tally.see()
        tally.leave("that are neither PNG nor JPEG", sample=str(file))
    return tally


def _check_size(count: int, channels: int, size: tuple[int, int]) -> None:
    size_bytes = count * channels * size[0] * size[1]
    if size_bytes > LARGEST_WINDOWS_BYTES:
        raise DataError(
            f"{count} pictures of {size[0]}x{size[1]} would take {size_bytes / 2**30:.0f} GB, at most "
            f"{LARGEST_WINDOWS_BYTES >> 30} are taken: a smaller ?size="
        )


def _number_labels(
    labels: Sequence[str], options: ImageOptions, path: str
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    if not options.classes:
        classes, y = number_names(np.array(labels))
        refuse_one_class_by_two_names(classes, path)
        return classes, y
    declared = tuple(split_names(options.classes))
    if len(set(declared)) < len(declared):
        raise ConfigError(f"classes={options.classes[:100]}: a name is there twice")
    if strange := sorted(set(labels) - set(declared)):
        raise DataError(f"{path}: the folder {strange[0]!r} is none of classes={', '.join(declared)[:100]}")
    return declared, np.array([declared.index(name) for name in labels], np.int64)


def _gather(pixels: Pixels, rows: NDArray[np.int64], into: Path) -> NDArray[Any]:
    """Return these pictures, mapped from a file of their own."""
    shape = (len(rows), *pixels.shape[1:])
    with open_private(into, "xb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for start in range(0, len(rows), _AT_ONCE):
            file.write(pixels[rows[start : start + _AT_ONCE]].tobytes())
    return np.load(into, mmap_mode="c", allow_pickle=False) if len(rows) else np.zeros(shape, np.uint8)
