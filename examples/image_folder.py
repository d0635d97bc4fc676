"""Pictures in folders and a network of one's own, trained by `mdl up` without a loop of one's own.

`python examples/image_folder.py pictures` draws spectrograms of motion windows, one folder a class with one for each
person in it: time goes to the right, frequency down, and the three axes are the colours. Then:

    mdl up -n 3 --data 'images:pictures?subject=path:2' --model image_folder:small_cnn

The windows are synthetic; a second argument takes others, as in `uci-har:UCI_HAR_Dataset.zip`. `small_cnn` takes
pictures of any size and number of channels. Run `mdl` where this file is: a function is looked for beside it.
"""

import sys
from pathlib import Path

import numpy as np
from torch import nn

from mdl.data import default_cache_dir, load_data

# Samples of one column, and the step to the next one.
LENGTH, STEP = 32, 4


def small_cnn(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Two convolutions, the mean over what they find, one dense layer."""
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d((4, 4)), nn.Flatten(), nn.Linear(32 * 16, classes)),
    )


def spectrogram(x: np.ndarray) -> np.ndarray:
    """uint8 (frequencies, columns, axes) of a window (axes, time); -40 dB and below is black, 40 dB is white."""
    starts = range(0, x.shape[1] - LENGTH + 1, STEP)
    pieces = np.stack([x[:, start : start + LENGTH] for start in starts], axis=1) * np.hanning(LENGTH)
    level = 20 * np.log10(np.abs(np.fft.rfft(pieces)) + 1e-9)
    return ((level + 40) / 80 * 255).clip(0, 255).astype(np.uint8).transpose(2, 1, 0)


def draw(folder: Path, spec: str, most: int) -> int:
    """Up to so many pictures of each class and person; how many there are."""
    from PIL import Image

    data, drawn = load_data(spec, default_cache_dir()), {}
    for windows in (data.train, data.test):
        for x, y, subject in zip(windows.x, windows.y, windows.subject, strict=True):
            place = folder / data.classes[y] / f"person-{subject:02d}"
            number = drawn[place] = drawn.get(place, 0) + 1
            if number <= most:
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(spectrogram(np.array(x[-3:]))).save(place / f"{number:03d}.png")
    return sum(min(count, most) for count in drawn.values())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("image_folder: where to draw? python examples/image_folder.py FOLDER [DATA [PICTURES]]")
    target, source = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "motion?people=12&windows=60"
    count = draw(target, source, int(sys.argv[3]) if len(sys.argv) > 3 else 12)
    print(f"{count} pictures below {target}")
