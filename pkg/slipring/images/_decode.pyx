"""The binding of csrc/images: JPEG bytes, or pixels, to a resized crop in an array."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDED, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from slipring._core.ring._segment cimport clock
from slipring._core.ring._slot cimport augmented
from slipring.errors import ImageError

cdef extern from "augment.h" nogil:
    ctypedef struct sr_target:
        char *data
        int64_t row, pixel, channel
        int width, height, bytes
        const void *table

    ctypedef struct sr_op:
        pass

    ctypedef struct sr_erasure:
        int32_t top, left, height, width, type

    ctypedef struct sr_pixels:
        uint8_t *data
        int height, width

    ctypedef struct sr_scratch:
        pass

    ctypedef struct sr_augmenter:
        sr_scratch resize

    void sr_augmenter_free(sr_augmenter *a)
    int sr_image_make(sr_augmenter *a, int height, int width, sr_pixels *image)
    int sr_augment(sr_augmenter *a, const sr_op *ops, int count, sr_pixels *image)
    int sr_displace(sr_augmenter *a, int filter, const float *x, const float *y, const double *fill, sr_pixels *image)
    int sr_image_write(sr_augmenter *a, const sr_pixels *image, const sr_target *target)
    void sr_erase(const sr_target *target, const sr_erasure *erasure)

    enum sr_type:
        SR_UINT8
        SR_FLOAT32
        SR_FLOAT16
        SR_BFLOAT16

    void sr_mix(void *values, const void *other, size_t count, sr_type type, float share, float rest)

cdef extern from "decode.h" nogil:
    enum:
        JMSG_LENGTH_MAX
        SR_NOT_A_JPEG_FOR_US
        SR_BAD_IMAGE
        SR_BAD_BOX
        SR_TOO_LARGE
        SR_TRUNCATED

    ctypedef struct sr_libjpeg:
        pass

    ctypedef struct sr_decoder:
        pass

    ctypedef struct sr_image:
        int width, height, orientation

    ctypedef struct sr_crop:
        int top, left, height, width, to_height, to_width, window_top, window_left, filter, orientation
        bint flip, fill_truncated
        double reducing_gap
        uint64_t most_pixels

    int sr_library_bind(void *handle, sr_libjpeg *library, char *why)
    int sr_decoder_make(const sr_libjpeg *library, sr_decoder **out)
    void sr_decoder_free(sr_decoder *decoder)
    const char *sr_decoder_message(const sr_decoder *decoder)
    int sr_jpeg_header(const uint8_t *data, size_t bytes, sr_image *out)
    int sr_decode(sr_decoder *decoder, sr_scratch *scratch, const uint8_t *data, size_t bytes, const sr_crop *crop,
                  const sr_target *target, sr_image *image)
    int sr_crop_pixels(sr_scratch *scratch, const uint8_t *pixels, size_t stride, int width, int height,
                       const sr_crop *crop, const sr_target *target)
    const char *sr_resize_kernels()

cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *path, int flags)
    char *dlerror()
    int RTLD_NOW
    int RTLD_LOCAL

cdef enum:
    BAD_OPERATION = -1000  # no errno
    NO_MEMORY = -12  # -ENOMEM

cdef sr_libjpeg library
cdef bint bound = False
cdef list idle = []  # decoders that no thread is using: a thread takes one, or makes one


cdef class JpegDecoder:
    """libjpeg's state, and memory that is kept from one image to the next; for one thread at a time."""

    cdef sr_decoder *handle
    cdef sr_augmenter workspace

    def __cinit__(self):
        if sr_decoder_make(&library if bound else NULL, &self.handle) != 0:
            raise MemoryError("no memory for a JPEG decoder")

    def __dealloc__(self):
        sr_decoder_free(self.handle)
        sr_augmenter_free(&self.workspace)


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
    cdef sr_image header
    cdef int rc = sr_jpeg_header(&view[0] if view.shape[0] else NULL, view.shape[0], &header)
    if rc == SR_NOT_A_JPEG_FOR_US:
        return None
    if rc != 0:
        raise ValueError("a JPEG whose header has no size")
    return header.width, header.height, header.orientation


cdef class Target:
    """An array that receives pixels, and the operations between the resize and the array.

    Parameters
    ----------
    array : buffer, H × W × 3, writable, of any strides
    table : buffer, optional
        3 × 256 values of the array's type, one for each pixel value of each channel.
    size : (height, width), optional
        Size of the image in memory on which the operations run; None: there are none.
    part_box : (top, left, height, width), optional
        The part of that image that shows the crop; the rest is black.
    ops, erasures : bytes
        Arrays of `sr_op`, for the image, and of `sr_erasure`, for the array.
    """

    cdef Py_buffer out, table_buffer
    cdef sr_target whole, part  # the array, and the memory that the crop fills
    cdef sr_pixels image
    cdef bytes ops, erasures
    cdef const sr_op *first
    cdef const sr_erasure *first_erasure
    cdef int height, width, top, left, count, n_erasures
    cdef uint64_t ns  # of the operations

    def __cinit__(self, array, table=None, size=None, part_box=None, bytes ops=b"", bytes erasures=b""):
        cdef Py_buffer *out = &self.out
        PyObject_GetBuffer(array, out, PyBUF_STRIDED | PyBUF_WRITABLE)
        if out.ndim != 3 or out.shape[2] != 3:
            shape = tuple([out.shape[i] for i in range(out.ndim)])
            raise ValueError(f"out must be an array of shape (height, width, 3), not {shape}")
        if out.shape[0] < 1 or out.shape[1] < 1 or out.shape[0] > 1 << 24 or out.shape[1] > 1 << 24:
            raise ValueError(f"out must have 1 to {1 << 24} rows and columns, not {out.shape[0]} x {out.shape[1]}")
        self.whole.data = <char *> out.buf
        self.whole.row, self.whole.pixel, self.whole.channel = out.strides[0], out.strides[1], out.strides[2]
        self.whole.height, self.whole.width = <int> out.shape[0], <int> out.shape[1]
        self.whole.bytes = <int> out.itemsize
        if table is not None:
            PyObject_GetBuffer(table, &self.table_buffer, PyBUF_SIMPLE)
            if self.table_buffer.len != 3 * 256 * out.itemsize:
                raise ValueError(f"a table of {self.table_buffer.len} bytes for values of {out.itemsize} bytes")
            self.whole.table = self.table_buffer.buf
        elif out.itemsize != 1:
            raise ValueError(f"out must be of dtype uint8, its items have {out.itemsize} bytes")
        self.part = self.whole
        if size is not None:
            self.operate(size, part_box, ops, erasures)

    def __dealloc__(self):
        PyBuffer_Release(&self.out)
        PyBuffer_Release(&self.table_buffer)

    cdef int operate(self, size, part_box, bytes ops, bytes erasures) except -1:
        """Add the operations, and the part of their image that the crop fills."""
        self.height, self.width = size
        self.top, self.left, self.part.height, self.part.width = part_box
        if (self.top < 0 or self.left < 0 or self.part.height < 1 or self.part.width < 1
                or self.part.height > self.height - self.top or self.part.width > self.width - self.left):
            raise ValueError(f"the part {part_box} is not inside an image of {self.height} x {self.width} pixels")
        if len(ops) % sizeof(sr_op) or len(erasures) % sizeof(sr_erasure):
            raise ValueError(f"operations of {len(ops)} and {len(erasures)} bytes")
        self.ops, self.erasures = ops, erasures
        self.first, self.count = <const sr_op *> <const char *> ops, <int> (len(ops) // sizeof(sr_op))
        self.first_erasure = <const sr_erasure *> <const char *> erasures
        self.n_erasures = <int> (len(erasures) // sizeof(sr_erasure))
        self.part.row, self.part.pixel, self.part.channel = 3 * <int64_t> self.width, 3, 1
        self.part.bytes, self.part.table = 1, NULL
        return 0

    cdef int begin(self, sr_augmenter *augmenter) noexcept nogil:
        """Make the image on which the operations run, if there are any."""
        self.ns = 0
        if self.height == 0:
            return 0
        cdef int rc = sr_image_make(augmenter, self.height, self.width, &self.image)
        if rc != 0:
            return rc
        if self.part.height < self.height or self.part.width < self.width:
            memset(self.image.data, 0, 3 * <size_t> self.height * <size_t> self.width)
        self.part.data = <char *> self.image.data + 3 * (<size_t> self.top * <size_t> self.width + <size_t> self.left)
        return 0

    cdef int end(self, sr_augmenter *augmenter) noexcept nogil:
        """Apply the operations, and write the result; `ns` receives the time without that of the writing."""
        if self.height == 0:
            return 0
        cdef uint64_t begun = clock() if self.count else 0
        cdef int rc = sr_augment(augmenter, self.first, self.count, &self.image), i
        self.ns = clock() - begun if self.count else 0
        if rc == 0:
            rc = sr_image_write(augmenter, &self.image, &self.whole)
        begun = clock() if self.n_erasures else 0
        for i in range(self.n_erasures if rc == 0 else 0):
            if not fits(&self.whole, &self.first_erasure[i]):
                return BAD_OPERATION
            sr_erase(&self.whole, &self.first_erasure[i])
        self.ns += clock() - begun if self.n_erasures else 0
        return BAD_OPERATION if rc != 0 and rc != NO_MEMORY else rc


cdef bint fits(const sr_target *target, const sr_erasure *e) noexcept nogil:
    return (e.top >= 0 and e.left >= 0 and e.height <= target.height - e.top and e.width <= target.width - e.left
            and (1 if e.type == SR_UINT8 else 4 if e.type == SR_FLOAT32 else 2) == target.bytes)


cdef int crop_of(sr_crop *crop, placement, int orientation) except -1:
    box, to, window, crop.flip, crop.filter = placement
    crop.top, crop.left, crop.height, crop.width = box if box is not None else (0, 0, 0, 0)
    crop.to_height, crop.to_width = to if to is not None else (0, 0)
    crop.window_top, crop.window_left = window
    crop.orientation = orientation
    crop.reducing_gap, crop.fill_truncated, crop.most_pixels = 0, False, 0
    return 0


cdef JpegDecoder take():
    try:
        return idle.pop()
    except IndexError:
        return JpegDecoder()


cdef int finish(JpegDecoder decoder, Target target, int rc) except -1:
    """Give the decoder back, and raise the errors that all images have in common."""
    idle.append(decoder)
    if target.ns:
        augmented(target.ns)
    if rc == NO_MEMORY:
        raise MemoryError("no memory for decoding or resizing an image")
    if rc == BAD_OPERATION:
        raise ImageError(UNFIT)
    return 0


def decode(data, Target target not None, placement, reading):
    """Decode a JPEG's part into a target; return (code, message, width, height): code 0, or one of this module's.

    Parameters
    ----------
    data : buffer of bytes
    target : Target
    placement : Placement
        The window is a part of the operations' image, if the target has operations.
    reading : ImageReading
    """
    cdef sr_crop crop
    cdef sr_image header
    cdef Py_buffer encoded
    cdef JpegDecoder decoder
    cdef sr_augmenter *augmenter
    cdef int rc
    if not bound:
        return SR_NOT_A_JPEG_FOR_US, "", 0, 0
    crop_of(&crop, placement, 0 if reading.exif else 1)
    crop.fill_truncated, crop.reducing_gap, crop.most_pixels = reading.fill, reading.gap, reading.max_pixels
    PyObject_GetBuffer(data, &encoded, PyBUF_SIMPLE)
    try:
        decoder = take()
        augmenter = &decoder.workspace
        with nogil:
            rc = target.begin(augmenter)
            if rc == 0:
                rc = sr_decode(decoder.handle, &augmenter.resize, <const uint8_t *> encoded.buf, encoded.len, &crop,
                               &target.part, &header)
            if rc == 0:
                rc = target.end(augmenter)
        message = sr_decoder_message(decoder.handle).decode(errors="replace")
        finish(decoder, target, rc)
        return rc, message, header.width, header.height
    finally:
        PyBuffer_Release(&encoded)


def crop_pixels(const uint8_t[:, :, ::1] pixels, Target target not None, placement, int orientation=1):
    """Do the same for an image in memory: H × W × 3, C-contiguous. Return 0 or BAD_BOX."""
    cdef sr_crop crop
    cdef JpegDecoder decoder
    cdef sr_augmenter *augmenter
    cdef int rc
    crop_of(&crop, placement, orientation)
    if pixels.shape[2] != 3 or pixels.shape[0] < 1 or pixels.shape[1] < 1:
        raise ValueError("pixels must be an array of shape (height, width, 3)")
    decoder = take()
    augmenter = &decoder.workspace
    with nogil:
        rc = target.begin(augmenter)
        if rc == 0:
            rc = sr_crop_pixels(&augmenter.resize, &pixels[0, 0, 0], 3 * pixels.shape[1], <int> pixels.shape[1],
                                <int> pixels.shape[0], &crop, &target.part)
        if rc == 0:
            rc = target.end(augmenter)
    finish(decoder, target, rc)
    if rc == SR_BAD_IMAGE:
        raise ImageError(f"an image of {pixels.shape[0]} x {pixels.shape[1]} pixels is too large to be resized")
    return rc


def displace(const uint8_t[:, :, ::1] pixels, uint8_t[:, :, ::1] out, const float[:, ::1] x, const float[:, ::1] y,
             int filter, fill):
    """Write an image to `out` with each pixel moved; see `sr_displace`. All arrays have one height and width."""
    cdef int height = <int> pixels.shape[0], width = <int> pixels.shape[1], rc
    cdef double[3] color
    cdef sr_pixels image
    cdef JpegDecoder decoder = take()
    cdef sr_augmenter *augmenter = &decoder.workspace
    cdef size_t count = 3 * <size_t> height * <size_t> width
    for array in (out, x, y):
        if array.shape[0] != height or array.shape[1] != width:
            raise ValueError("the arrays have different sizes")
    if pixels.shape[2] != 3 or out.shape[2] != 3:
        raise ValueError("an image must have 3 channels")
    color[0], color[1], color[2] = fill
    with nogil:
        rc = sr_image_make(augmenter, height, width, &image)
        if rc == 0:
            memcpy(image.data, &pixels[0, 0, 0], count)
            rc = sr_displace(augmenter, filter, &x[0, 0], &y[0, 0], color, &image)
        if rc == 0:
            memcpy(&out[0, 0, 0], image.data, count)
    idle.append(decoder)
    if rc != 0:
        raise MemoryError("no memory for moving the pixels of an image")


def mix(values, other, int type, float share, float rest):
    """Compute ``values * share + other * rest`` in `values`; both are contiguous arrays of `TYPES` number `type`."""
    cdef Py_buffer to, source
    cdef size_t size = 1 if type == SR_UINT8 else 4 if type == SR_FLOAT32 else 2
    PyObject_GetBuffer(values, &to, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(other, &source, PyBUF_SIMPLE)
        try:
            if to.len != source.len or to.len % size:
                raise ValueError(f"images of {to.len} and {source.len} bytes")
            with nogil:
                sr_mix(to.buf, source.buf, <size_t> to.len // size, <sr_type> type, share, rest)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&to)


UNFIT = (
    "an operation does not fit the image: its kernel is larger than the image, or its result is too large. Scale the "
    "image before"
)
TYPES = {"uint8": SR_UINT8, "float32": SR_FLOAT32, "float16": SR_FLOAT16, "bfloat16": SR_BFLOAT16}
NOT_FOR_US = SR_NOT_A_JPEG_FOR_US
BAD_BOX = SR_BAD_BOX
TOO_LARGE = SR_TOO_LARGE
TRUNCATED = SR_TRUNCATED
