"""Images: in an .npz, and as pictures in folders; and what is said about those that are wrong."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from mdl.data import describe_data, load_data, measure_channels
from mdl.data.describe import draw_classes
from mdl.data.windows import to_input
from mdl.errors import ConfigError, DataError

Image = pytest.importorskip("PIL.Image")


def picture(number: int, height: int = 6, width: int = 8) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of ten pictures each, by two people."""
    for place, name in enumerate(("cat", "dog")):
        for number in range(10):
            into = tmp_path / "in" / name / f"p{number % 2}"
            into.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(10 * place + number)).save(into / f"{number}.png")
    return tmp_path / "in"


def test_pictures_in_folders_are_classes_and_the_last_fifth_is_held_out(folder: Path, tmp_path: Path) -> None:
    data = load_data(f"images:{folder}", tmp_path / "cache")
    assert (data.classes, data.channels, data.shape) == (("cat", "dog"), ("red", "green", "blue"), (3, 6, 8))
    assert (len(data.train), len(data.test), data.held_out) == (16, 4, "time")
    assert data.train.x.dtype == np.uint8
    files = sorted((folder / "cat").rglob("*.png"))
    assert np.array_equal(data.test.x[1], np.moveaxis(np.array(Image.open(files[-1])), 2, 0))
    again = load_data(f"images:{folder}", tmp_path / "cache")
    assert np.array_equal(again.train.x, data.train.x)


@pytest.mark.parametrize("tested", ["val", "Test"])
def test_folders_train_and_val_are_a_split(tested: str, tmp_path: Path) -> None:
    for side, count in (("train", 6), (tested, 3)):
        for place, name in enumerate(("cat", "dog")):
            (tmp_path / "in" / side / name).mkdir(parents=True)
            for number in range(count):
                image = Image.fromarray(picture(100 * count + 10 * place + number))
                image.save(tmp_path / "in" / side / name / f"{number}.png")
    data = load_data(f"images:{tmp_path}/in", tmp_path / "cache")
    assert (data.classes, data.held_out) == (("cat", "dog"), "given")
    assert (len(data.train), len(data.test)) == (12, 6)
    assert np.array_equal(data.test.x[0], np.moveaxis(picture(300), 2, 0))
    assert f"train/ is trained on, {tested}/ is tested on (by the folders' names)" in data.notes
    assert load_data(f"images:{tmp_path}/in?split=time", tmp_path / "cache").classes == tuple(sorted((tested, "train")))
    (tmp_path / "in" / "more" / "cat").mkdir(parents=True)
    for number in range(2):
        (tmp_path / f"in/train/cat/{number}.png").rename(tmp_path / f"in/more/cat/{number}.png")
    assert load_data(f"images:{tmp_path}/in", tmp_path / "cache").classes == tuple(sorted((tested, "more", "train")))


def test_hidden_folders_are_no_classes(folder: Path, tmp_path: Path) -> None:
    for where in (folder, folder / "cat", folder / "__MACOSX"):
        (where / ".ipynb_checkpoints").mkdir(parents=True)
        for number in range(9):
            Image.fromarray(picture(number)).save(where / ".ipynb_checkpoints" / f"{number}-checkpoint.png")
    data = load_data(f"images:{folder}", tmp_path / "cache")
    assert (data.classes, len(data.train) + len(data.test)) == (("cat", "dog"), 20)


def test_a_folder_may_be_a_person(folder: Path, tmp_path: Path) -> None:
    data = load_data(f"images:{folder}?subject=path:2&classes=dog,cat,bird", tmp_path)
    assert data.held_out == "subject"
    assert data.subject_names == ("p0", "p1")
    assert data.classes == ("dog", "cat", "bird")
    assert (data.train.y[:5] == 1).all()


def test_pictures_are_brought_to_a_size_and_to_grey(folder: Path, tmp_path: Path) -> None:
    Image.fromarray(picture(7, 30, 40)).save(folder / "cat" / "p0" / "large.jpg", quality=95)
    with pytest.raises(DataError, match=r"large.jpg: 30x40 pixels, but .*/0.png has 6x8; .* \?size=6x8"):
        load_data(f"images:{folder}", tmp_path)
    data = load_data(f"images:{folder}?size=4x5&color=grey", tmp_path)
    assert (data.shape, data.channels) == ((1, 4, 5), ("grey",))


def test_a_photograph_lies_as_its_camera_says(tmp_path: Path) -> None:
    from mdl.data.readers.images import read_image

    upright = np.zeros((40, 80, 3), np.uint8)
    upright[:20] = 255
    turned = Image.fromarray(np.rot90(upright))
    turned.getexif()[274] = 6
    exif = turned.getexif()
    turned.save(tmp_path / "a.jpg", exif=exif)
    found = read_image(tmp_path / "a.jpg", "grey", (4, 8))
    assert found[0, 0].min() > 200
    assert found[0, 3].max() < 50


def _png(width: int, height: int) -> bytes:
    """Which claims so many pixels, and has none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def _wide() -> bytes:
    into = io.BytesIO()
    Image.fromarray(np.full((6, 8), 40_000, np.uint16)).save(into, "PNG")
    return into.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a picture", "no picture that can be read"),
        (b"", "no picture that can be read"),
        (_png(80, 60), "no picture that can be read"),
        (_png(20_000, 20_000), "no picture|20000 x 20000 pixels; at most 67,108,864 are decoded"),
        (_png(9_000, 9_000), "9000 x 9000 pixels; at most 67,108,864 are decoded"),
        (_wide(), "its pixels are I;16; expected 8 bits"),
        (b"GIF89a" + bytes(40), "no picture that can be read"),
    ],
)
def test_what_is_no_picture_is_refused_by_name_or_left_out(
    content: bytes, words: str, folder: Path, tmp_path: Path
) -> None:
    bad = folder / "dog" / "p1" / "zz.png"
    bad.write_bytes(content)
    with pytest.raises(DataError, match=rf"zz.png: .*({words})"):
        load_data(f"images:{folder}", tmp_path)
    with pytest.raises(DataError, match=r"\?bad=skip leaves such files out"):
        load_data(f"images:{folder}", tmp_path)
    data = load_data(f"images:{folder}?bad=skip", tmp_path)
    assert len(data.train) + len(data.test) == 20
    assert data.notes == ("read 20 pictures, left out 1: 1 that cannot be read",)
    assert data.left_out == (f"that cannot be read: {bad}",)


def test_folders_that_cannot_be_classes_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no picture; expected a folder with"):
        load_data(f"images:{tmp_path / 'empty'}", tmp_path)
    with pytest.raises(ConfigError, match="there are 0"):
        load_data(f"images:{folder / 'cat' / 'p0'}", tmp_path)
    with pytest.raises(DataError, match="the folder 'cat' is none of classes=dog"):
        load_data(f"images:{folder}?classes=dog", tmp_path)
    with pytest.raises(ConfigError, match="size=32"):
        load_data(f"images:{folder}?size=32", tmp_path)
    (folder / "Dog" / "p0").mkdir(parents=True)
    Image.fromarray(picture(3)).save(folder / "Dog" / "p0" / "1.png")
    with pytest.raises(DataError, match="'Dog' and 'dog' one class"):
        load_data(f"images:{folder}", tmp_path)


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.int16])
def test_npz_of_images_keeps_pixels_and_makes_floats_of_the_rest(kind: type, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 200, (20, 1, 5, 7)).astype(kind)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2, channels=np.array(["depth"]))
    for _ in range(2):  # read, then from the cache
        data = load_data(str(tmp_path / "a.npz"), tmp_path / "cache")
        assert data.shape == (1, 5, 7)
        assert data.channels == ("depth",)
        assert data.train.x.dtype == (np.uint8 if kind is np.uint8 else np.float32)
    given = to_input(data.train.x)
    assert given.dtype == np.float32
    assert given.max() <= (1.0 if kind is np.uint8 else 199.0)
    mean, deviation = measure_channels(data.train)
    assert mean[0] == pytest.approx(given.mean(), rel=1e-6)
    assert deviation[0] == pytest.approx(given.std(), rel=1e-5)


def test_images_with_their_channels_at_the_end_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((20, 32, 32, 3), np.uint8), y=np.arange(20) % 2)
    with pytest.raises(DataError, match=r"looks like \(n, height, width, channels\).*np.moveaxis\(x, 3, 1\)"):
        load_data(str(tmp_path / "a.npz"), tmp_path)


def test_a_description_has_height_and_width_and_a_picture_of_each_class(folder: Path, tmp_path: Path) -> None:
    data = load_data(f"images:{folder}", tmp_path)
    found = describe_data(data)
    assert (found["channels"], found["height"], found["width"]) == (3, 6, 8)
    assert "window" not in found
    assert 0.4 < found["channel_mean"][0] < 0.6
    lines = draw_classes(data)
    assert [lines[0], lines[4]] == ["cat:", "dog:"]
    assert all(len(line) == 10 and "█" in "".join(lines) for line in lines[1:4])
    assert not data.warnings
