"""The binding of csrc/images: JPEG bytes, or pixels, to a resized crop in an array."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDED, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint64_t

from slipring.images._cimages cimport (
    JMSG_LENGTH_MAX, SR_BAD_BOX, SR_BAD_IMAGE, SR_NOT_A_JPEG_FOR_US, SR_TOO_LARGE, SR_TRUNCATED, sr_libjpeg, sr_crop,
    sr_crop_pixels, sr_decode, sr_decoder, sr_decoder_free, sr_decoder_make, sr_decoder_message, sr_jpeg_header,
    sr_library_bind, sr_image, sr_resize_kernels, sr_target,
)

cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *path, int flags)
    char *dlerror()
    int RTLD_NOW
    int RTLD_LOCAL

cdef sr_libjpeg library
cdef bint bound = False
cdef list idle = []  # decoders that no thread is using: a thread takes one, or makes one


cdef class JpegDecoder:
    """libjpeg's state and scratch memory, for one thread at a time."""

    cdef sr_decoder *handle

    def __cinit__(self):
        if sr_decoder_make(&library if bound else NULL, &self.handle) != 0:
            raise MemoryError("no memory for a JPEG decoder")

    def __dealloc__(self):
        sr_decoder_free(self.handle)


def bind(path):
    """Use the libjpeg at `path`; return None, or the reason why it cannot be used."""
    global bound
    cdef bytes name = path.encode()
    cdef char why[JMSG_LENGTH_MAX]
    cdef void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)
    if handle == NULL:
        return (<bytes> dlerror()).decode(errors="replace")
    why[0] = 0
    if sr_library_bind(handle, &library, why) != 0:
        return (<bytes> why).decode(errors="replace")
    bound = True
    idle.clear()
    return None


def kernels():
    """Return the name of the inner loops of resizing: "avx2", "neon" or "c"."""
    return sr_resize_kernels().decode()


def look(data):
    """Return (width, height, orientation) from a JPEG's header; None if `data` is not a JPEG."""
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef sr_image picture
    cdef int rc = sr_jpeg_header(&view[0] if view.shape[0] else NULL, view.shape[0], &picture)
    if rc == SR_NOT_A_JPEG_FOR_US:
        return None
    if rc != 0:
        raise ValueError("a JPEG whose header tells no size")
    return picture.width, picture.height, picture.orientation


cdef int target_of(object out, object table, sr_target *target, Py_buffer *room, Py_buffer *levels) except -1:
    """Describe an H × W × 3 array; `room` and `levels` keep its memory and its table until they are released."""
    PyObject_GetBuffer(out, room, PyBUF_STRIDED | PyBUF_WRITABLE)
    try:
        if room.ndim != 3 or room.shape[2] != 3:
            shape = tuple([room.shape[i] for i in range(room.ndim)])
            raise ValueError(f"out must be an array of shape (height, width, 3), not {shape}")
        if room.shape[0] < 1 or room.shape[1] < 1 or room.shape[0] > 1 << 24 or room.shape[1] > 1 << 24:
            raise ValueError(f"out must have 1 to {1 << 24} rows and columns, not {room.shape[0]} x {room.shape[1]}")
        target.data = <char *> room.buf
        target.row, target.pixel, target.channel = room.strides[0], room.strides[1], room.strides[2]
        target.height, target.width = <int> room.shape[0], <int> room.shape[1]
        target.bytes = <int> room.itemsize
        target.table = NULL
        if table is not None:
            PyObject_GetBuffer(table, levels, PyBUF_SIMPLE)
            if levels.len != 3 * 256 * room.itemsize:
                PyBuffer_Release(levels)
                raise ValueError(f"a table of {levels.len} bytes for values of {room.itemsize} bytes")
            target.table = levels.buf
        elif room.itemsize != 1:
            raise ValueError(f"out must be of dtype uint8, its items have {room.itemsize} bytes")
    except BaseException:
        PyBuffer_Release(room)
        raise
    return 0


cdef void crop_of(sr_crop *crop, box, to, window, int filter, int orientation, bint flip):
    crop.top, crop.left, crop.height, crop.width = box if box is not None else (0, 0, 0, 0)
    crop.to_height, crop.to_width = to if to is not None else (0, 0)
    crop.window_top, crop.window_left = window
    crop.filter = filter
    crop.orientation, crop.flip = orientation, flip
    crop.reducing_gap, crop.fill_truncated, crop.most_pixels = 0, False, 0


cdef JpegDecoder take():
    try:
        return idle.pop()
    except IndexError:
        return JpegDecoder()


def decode(data, out, table, box, to, window, int filter, int orientation, bint flip, bint fill, double gap,
           uint64_t most_pixels):
    """Decode a JPEG's box into `out`; return (code, message, width, height): code 0, or one of this module's.

    Parameters
    ----------
    data : buffer of bytes
    out : buffer, H × W × 3, writable
    table : buffer or None
        3 × 256 values of out's type, one for each pixel value of each channel.
    box : (top, left, height, width) or None
    to : (height, width) or None
        The size to which the box is scaled; the result is a window of that.
    window : (top, left)
    orientation : int
        The EXIF orientation to apply; 0: the file's own.
    """
    cdef sr_crop crop
    cdef sr_target target
    cdef sr_image picture
    cdef Py_buffer bytes_, room, levels
    cdef JpegDecoder decoder
    cdef int rc
    if not bound:
        return SR_NOT_A_JPEG_FOR_US, "", 0, 0
    crop_of(&crop, box, to, window, filter, orientation, flip)
    crop.fill_truncated, crop.reducing_gap, crop.most_pixels = fill, gap, most_pixels
    PyObject_GetBuffer(data, &bytes_, PyBUF_SIMPLE)
    try:
        target_of(out, table, &target, &room, &levels)
        try:
            decoder = take()
            with nogil:
                rc = sr_decode(decoder.handle, <const uint8_t *> bytes_.buf, bytes_.len, &crop, &target, &picture)
            message = sr_decoder_message(decoder.handle).decode(errors="replace")
            idle.append(decoder)
            if rc < 0 and rc not in (SR_NOT_A_JPEG_FOR_US, SR_BAD_IMAGE, SR_BAD_BOX, SR_TOO_LARGE, SR_TRUNCATED):
                raise MemoryError("no memory for decoding an image")
            return rc, message, picture.width, picture.height
        finally:
            PyBuffer_Release(&room)
            if table is not None:
                PyBuffer_Release(&levels)
    finally:
        PyBuffer_Release(&bytes_)


def crop_pixels(const uint8_t[:, :, ::1] pixels, out, table, box, to, window, int filter, int orientation, bint flip):
    """Do the same for an image in memory: H × W × 3, C-contiguous. Return 0 or BAD_BOX."""
    cdef sr_crop crop
    cdef sr_target target
    cdef Py_buffer room, levels
    cdef JpegDecoder decoder
    cdef int rc
    crop_of(&crop, box, to, window, filter, orientation, flip)
    if pixels.shape[2] != 3 or pixels.shape[0] < 1 or pixels.shape[1] < 1:
        raise ValueError("pixels must be an array of shape (height, width, 3)")
    target_of(out, table, &target, &room, &levels)
    try:
        decoder = take()
        with nogil:
            rc = sr_crop_pixels(decoder.handle, &pixels[0, 0, 0], 3 * pixels.shape[1], <int> pixels.shape[1],
                                <int> pixels.shape[0], &crop, &target)
        idle.append(decoder)
        if rc == SR_BAD_IMAGE:
            raise ValueError(f"an image of {pixels.shape[0]} x {pixels.shape[1]} pixels is too large to be resized")
        if rc != 0 and rc != SR_BAD_BOX:
            raise MemoryError("no memory for resizing an image")
        return rc
    finally:
        PyBuffer_Release(&room)
        if table is not None:
            PyBuffer_Release(&levels)


NOT_FOR_US = SR_NOT_A_JPEG_FOR_US
BAD_PICTURE = SR_BAD_IMAGE
BAD_BOX = SR_BAD_BOX
TOO_LARGE = SR_TOO_LARGE
TRUNCATED = SR_TRUNCATED
