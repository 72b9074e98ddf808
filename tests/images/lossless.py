"""A lossless JPEG (SOF3), which Pillow does not write: grey, predicted from the left, Huffman-coded."""

import struct

import numpy as np


def lossless(array):
    """Return a lossless JPEG of an H x W array of pixel values."""
    height, width = array.shape
    levels = array.astype(int)
    left = np.empty_like(levels)
    left[:, 1:] = levels[:, :-1]
    left[1:, 0] = levels[:-1, 0]  # the first of a row is predicted from above
    left[0, 0] = 128
    bits = []
    for difference in (levels - left).ravel().tolist():
        size = abs(difference).bit_length()
        bits.append(f"{size:04b}")  # sizes 0 to 8 have codes of four bits, in order
        if size:
            bits.append(f"{difference if difference > 0 else difference + (1 << size) - 1:0{size}b}")
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    scan = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\x00")
    return b"".join(
        [
            b"\xff\xd8",
            segment(0xC3, struct.pack(">BHHB", 8, height, width, 1) + bytes([1, 0x11, 0])),
            segment(0xC4, bytes([0, 0, 0, 0, 9, *[0] * 12, *range(9)])),
            segment(0xDA, bytes([1, 1, 0, 1, 0, 0])),  # predictor 1
            scan,
            b"\xff\xd9",
        ]
    )


def segment(marker, data):
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data
