"""The binding of csrc/images: JPEG bytes, or pixels, to a resized crop in an array."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDED, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from slipring._core.ring._segment cimport clock
from slipring._core.ring._slot cimport augmented
from slipring.errors import ImageError
from slipring.images._cimages cimport (
    JMSG_LENGTH_MAX, SR_BAD_BOX, SR_BAD_IMAGE, SR_BFLOAT16, SR_FLOAT16, SR_FLOAT32, SR_NOT_A_JPEG_FOR_US,
    SR_OP_ADD_TO_SUM, SR_OP_AFFINE, SR_OP_AUTOCONTRAST, SR_OP_BRIGHTNESS, SR_OP_CONTRAST, SR_OP_CROP, SR_OP_ELASTIC,
    SR_OP_EQUALIZE, SR_OP_GAUSSIAN_BLUR, SR_OP_GRAYSCALE, SR_OP_HORIZONTAL_FLIP, SR_OP_HUE, SR_OP_INVERT,
    SR_OP_KEEP, SR_OP_PAD, SR_OP_PERMUTE, SR_OP_PERSPECTIVE, SR_OP_PIL_BLUR, SR_OP_POSTERIZE, SR_OP_RESIZE,
    SR_OP_SATURATION, SR_OP_SHARPNESS, SR_OP_SOLARIZE, SR_OP_SOLARIZE_ADD, SR_OP_TAKE_SUM, SR_OP_VERTICAL_FLIP,
    SR_TOO_LARGE,
    SR_TRUNCATED, SR_UINT8, sr_augment, sr_augmenter, sr_augmenter_free, sr_crop, sr_crop_pixels, sr_decode, sr_decoder,
    sr_decoder_free, sr_decoder_make, sr_decoder_message, sr_displace, sr_erase, sr_erasure,
    sr_image, sr_image_make, sr_image_write, sr_jpeg_header, sr_libjpeg, sr_library_bind, sr_mix, sr_op, sr_pixels,
    sr_resize_kernels, sr_target, sr_type,
)

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


cdef class Operations:
    """Operations on an image in memory, between the resize and the array that is written.

    Parameters
    ----------
    height, width : int
        Size of the image before the operations.
    place : (top, left, height, width)
        The part of that image that shows the crop; the rest is black.
    ops, erasures : bytes
        Arrays of `sr_op`, for the image, and of `sr_erasure`, for the result.
    """

    cdef bytes ops, erasures
    cdef int height, width, top, left, rows, columns
    cdef const sr_op *first
    cdef const sr_erasure *first_erasure
    cdef int count, n_erasures

    def __init__(self, int height, int width, place, bytes ops=b"", bytes erasures=b""):
        self.height, self.width = height, width
        self.top, self.left, self.rows, self.columns = place
        if (self.top < 0 or self.left < 0 or self.rows < 1 or self.columns < 1 or self.rows > height - self.top
                or self.columns > width - self.left):
            raise ValueError(f"the part {place} is not inside an image of {height} x {width} pixels")
        if len(ops) % sizeof(sr_op) or len(erasures) % sizeof(sr_erasure):
            raise ValueError(f"operations of {len(ops)} and {len(erasures)} bytes")
        self.ops, self.erasures = ops, erasures
        self.first, self.count = <const sr_op *> <const char *> ops, <int> (len(ops) // sizeof(sr_op))
        self.first_erasure = <const sr_erasure *> <const char *> erasures
        self.n_erasures = <int> (len(erasures) // sizeof(sr_erasure))

    cdef int begin(self, sr_augmenter *augmenter, sr_pixels *image, sr_target *part) noexcept nogil:
        """Make the image, and describe the part of it that the crop fills."""
        cdef int rc = sr_image_make(augmenter, self.height, self.width, image)
        if rc != 0:
            return rc
        if self.rows < self.height or self.columns < self.width:
            memset(image.data, 0, 3 * <size_t> self.height * <size_t> self.width)
        part.data = <char *> image.data + 3 * (<size_t> self.top * <size_t> self.width + <size_t> self.left)
        part.row, part.pixel, part.channel = 3 * <int64_t> self.width, 3, 1
        part.height, part.width, part.bytes, part.table = self.rows, self.columns, 1, NULL
        return 0

    cdef int end(self, sr_augmenter *augmenter, sr_pixels *image, const sr_target *target,
                 uint64_t *ns) noexcept nogil:
        """Apply the operations, and write the result; `ns` receives the time without that of the writing."""
        cdef uint64_t begun = clock() if self.count else 0
        cdef int rc = sr_augment(augmenter, self.first, self.count, image), i
        cdef const sr_erasure *e
        ns[0] = clock() - begun if self.count else 0
        if rc == 0:
            rc = sr_image_write(augmenter, image, target)
        if rc != 0 or self.n_erasures == 0:
            return rc
        begun = clock()
        for i in range(self.n_erasures):
            e = &self.first_erasure[i]
            if (e.top < 0 or e.left < 0 or e.height > target.height - e.top or e.width > target.width - e.left
                    or (1 if e.type == SR_UINT8 else 4 if e.type == SR_FLOAT32 else 2) != target.bytes):
                return BAD_OPERATION
            sr_erase(target, e)
        ns[0] += clock() - begun
        return 0


def decode(data, out, table, box, to, window, int filter, int orientation, bint flip, bint fill, double gap,
           uint64_t most_pixels, Operations operations=None):
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
    operations : Operations, optional
        The window is a part of their image then, and `out` has the size of their result.
    """
    cdef sr_crop crop
    cdef sr_target target, part
    cdef sr_image picture
    cdef sr_pixels image
    cdef Py_buffer bytes_, room, levels
    cdef JpegDecoder decoder
    cdef sr_augmenter *augmenter
    cdef uint64_t ns = 0
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
            augmenter = &decoder.workspace
            with nogil:
                if operations is None:
                    rc = sr_decode(decoder.handle, &augmenter.resize, <const uint8_t *> bytes_.buf, bytes_.len, &crop,
                                   &target, &picture)
                else:
                    rc = operations.begin(augmenter, &image, &part)
                    if rc == 0:
                        rc = sr_decode(decoder.handle, &augmenter.resize, <const uint8_t *> bytes_.buf, bytes_.len,
                                       &crop, &part, &picture)
                    if rc == 0:
                        rc = operations.end(augmenter, &image, &target, &ns)
                        rc = BAD_OPERATION if rc != 0 and rc != NO_MEMORY else rc
            if ns:
                augmented(ns)
            message = sr_decoder_message(decoder.handle).decode(errors="replace")
            idle.append(decoder)
            if rc == NO_MEMORY:
                raise MemoryError("no memory for decoding an image")
            if rc == BAD_OPERATION:
                raise ImageError(UNFIT)
            return rc, message, picture.width, picture.height
        finally:
            PyBuffer_Release(&room)
            if table is not None:
                PyBuffer_Release(&levels)
    finally:
        PyBuffer_Release(&bytes_)


def crop_pixels(const uint8_t[:, :, ::1] pixels, out, table, box, to, window, int filter, int orientation, bint flip,
                Operations operations=None):
    """Do the same for an image in memory: H × W × 3, C-contiguous. Return 0 or BAD_BOX."""
    cdef sr_crop crop
    cdef sr_target target, part
    cdef sr_pixels image
    cdef Py_buffer room, levels
    cdef JpegDecoder decoder
    cdef sr_augmenter *augmenter
    cdef uint64_t ns = 0
    cdef int rc
    crop_of(&crop, box, to, window, filter, orientation, flip)
    if pixels.shape[2] != 3 or pixels.shape[0] < 1 or pixels.shape[1] < 1:
        raise ValueError("pixels must be an array of shape (height, width, 3)")
    target_of(out, table, &target, &room, &levels)
    try:
        decoder = take()
        augmenter = &decoder.workspace
        with nogil:
            rc = 0 if operations is None else operations.begin(augmenter, &image, &part)
            if rc == 0:
                rc = sr_crop_pixels(&augmenter.resize, &pixels[0, 0, 0], 3 * pixels.shape[1], <int> pixels.shape[1],
                                    <int> pixels.shape[0], &crop, &target if operations is None else &part)
            if rc == 0 and operations is not None:
                rc = operations.end(augmenter, &image, &target, &ns)
                rc = BAD_OPERATION if rc != 0 and rc != NO_MEMORY else rc
        if ns:
            augmented(ns)
        idle.append(decoder)
        if rc == SR_BAD_IMAGE:
            raise ImageError(f"an image of {pixels.shape[0]} x {pixels.shape[1]} pixels is too large to be resized")
        if rc == BAD_OPERATION:
            raise ImageError(UNFIT)
        if rc != 0 and rc != SR_BAD_BOX:
            raise MemoryError("no memory for resizing an image")
        return rc
    finally:
        PyBuffer_Release(&room)
        if table is not None:
            PyBuffer_Release(&levels)


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
BAD_PICTURE = SR_BAD_IMAGE
BAD_BOX = SR_BAD_BOX
TOO_LARGE = SR_TOO_LARGE
TRUNCATED = SR_TRUNCATED

OP_BRIGHTNESS = SR_OP_BRIGHTNESS
OP_CONTRAST = SR_OP_CONTRAST
OP_SATURATION = SR_OP_SATURATION
OP_HUE = SR_OP_HUE
OP_GRAYSCALE = SR_OP_GRAYSCALE
OP_POSTERIZE = SR_OP_POSTERIZE
OP_SOLARIZE = SR_OP_SOLARIZE
OP_SOLARIZE_ADD = SR_OP_SOLARIZE_ADD
OP_INVERT = SR_OP_INVERT
OP_AUTOCONTRAST = SR_OP_AUTOCONTRAST
OP_EQUALIZE = SR_OP_EQUALIZE
OP_PERMUTE = SR_OP_PERMUTE
OP_SHARPNESS = SR_OP_SHARPNESS
OP_GAUSSIAN_BLUR = SR_OP_GAUSSIAN_BLUR
OP_PIL_BLUR = SR_OP_PIL_BLUR
OP_HORIZONTAL_FLIP = SR_OP_HORIZONTAL_FLIP
OP_VERTICAL_FLIP = SR_OP_VERTICAL_FLIP
OP_CROP = SR_OP_CROP
OP_PAD = SR_OP_PAD
OP_RESIZE = SR_OP_RESIZE
OP_AFFINE = SR_OP_AFFINE
OP_PERSPECTIVE = SR_OP_PERSPECTIVE
OP_ELASTIC = SR_OP_ELASTIC
OP_KEEP = SR_OP_KEEP
OP_ADD_TO_SUM = SR_OP_ADD_TO_SUM
OP_TAKE_SUM = SR_OP_TAKE_SUM
