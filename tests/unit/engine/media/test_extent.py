"""Pixels, pages and seconds of files, from their first bytes."""

from __future__ import annotations

import io
import struct
import wave

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.media.extent import HEAD_BYTES, extent_of, image_pixels
from airflow_provider_llmbeam.spec.model.media_tokens import MediaExtent
from tests.media_files import pdf, png


def jpeg(width, height, *, preview=0):
    """The segments of a JPEG up to the frame, with a preview of that size."""
    begin = b"\xff\xd8\xff\xe1" + struct.pack(">H", 2 + preview) + bytes(preview) + b"\xff"
    return begin + b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)


def riff(kind, body):
    return b"RIFF" + bytes(4) + b"WEBP" + kind + bytes(4) + body


IMAGES = {
    "png": png(1800, 40),
    "gif": b"GIF89a" + struct.pack("<HH", 1800, 40),
    "bmp": b"BM" + bytes(16) + struct.pack("<ii", 1800, -40),
    "jpeg": jpeg(1800, 40),
    "jpeg with a preview": jpeg(1800, 40, preview=60_000),
    "webp": riff(b"VP8 ", bytes(6) + struct.pack("<HH", 1800, 0x4000 | 40)),
    "lossless webp": riff(b"VP8L", b"\x2f" + struct.pack("<I", 1799 | 39 << 14)),
    "extended webp": riff(b"VP8X", bytes(4) + (1799).to_bytes(3, "little") + (39).to_bytes(3, "little")),
}
BROKEN = (b"", b"\xff\xd8\xff", b"\xff\xd8\x00\x00", riff(b"ICCP", b""), png(1, 1)[:16] + bytes(8))


@pytest.mark.parametrize("name", IMAGES)
def test_the_pixels_of_an_image_are_in_its_header(name):
    assert image_pixels(IMAGES[name]) == (1800, 40)
    assert all(image_pixels(IMAGES[name][:size]) is None for size in (0, 2, 8))


@pytest.mark.parametrize("head", BROKEN)
def test_a_broken_image_has_no_pixels(head):
    assert image_pixels(head) is None


def test_pages_are_counted_or_projected_from_the_beginning_of_a_large_document():
    small = pdf("a", "b", "c")
    assert extent_of("application/pdf", len(small), lambda: small).pages == 3
    assert extent_of("application/pdf", 10 * len(small), lambda: small).pages == 30
    compressed = extent_of("application/pdf", 1000, lambda: b"%PDF-1.7 /Type /Pages /Type/ObjStm")
    assert compressed == extent_of("application/pdf", 1000, bytes) == MediaExtent(size_bytes=1000)


def test_the_duration_of_a_wav_is_in_its_header():
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * 16_000 * 3))
    assert extent_of("audio/wav", 96_044, lambda: file.getvalue()[:200]).seconds == 3.0
    assert extent_of("audio/x-wav", 96_044, lambda: b"RIFF").seconds is None


def test_of_other_types_nothing_is_read():
    def head():
        raise AssertionError

    assert extent_of("video/mp4", 7, head) == extent_of(None, 7, head) == MediaExtent(size_bytes=7)


@pytest.mark.fuzz
@given(
    st.sampled_from(["image/png", "application/pdf", "audio/wav"]),
    st.sampled_from([b"", *(image[:30] for image in IMAGES.values()), b"%PDF", b"RIFF\xff\xff\xff\xffWAVEfmt "]),
    st.binary(max_size=400),
)
def test_no_file_raises(mime_type, begin, rest):
    extent = extent_of(mime_type, len(begin + rest), lambda: (begin + rest)[:HEAD_BYTES])
    assert extent.pixels is None or min(extent.pixels) > 0
    assert extent.pages is None or extent.pages > 0
