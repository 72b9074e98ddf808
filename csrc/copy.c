/* copy.c - bytes on their way into a slot.
 *
 * A batch that is larger than the caches is not read again by the core that wrote it: ordinary stores would
 * first fetch each line of the slot from memory, and push out of the caches what the other processes need.
 * Streaming stores do neither. docs/architecture.md has the measurement.
 */
#include <string.h>

#include "handle.h"

#if defined(__x86_64__)
#include <emmintrin.h>

#define AHEAD 4096

void sr_copy_streaming(void *to, const void *from, uint64_t bytes)
{
    char *d = to;
    const char *s = from;
    uint64_t head = (-(uintptr_t)d) & 15;
    if (head > bytes)
        head = bytes;
    memcpy(d, s, head);
    uint64_t i = head;
    for (; i + 64 <= bytes; i += 64) {
        /* Further ahead than the processor looks by itself; beyond the end it does nothing. */
        _mm_prefetch(s + i + AHEAD, _MM_HINT_NTA);
        __m128i a = _mm_loadu_si128((const __m128i *)(s + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(s + i + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(s + i + 32));
        __m128i e = _mm_loadu_si128((const __m128i *)(s + i + 48));
        _mm_stream_si128((__m128i *)(d + i), a);
        _mm_stream_si128((__m128i *)(d + i + 16), b);
        _mm_stream_si128((__m128i *)(d + i + 32), c);
        _mm_stream_si128((__m128i *)(d + i + 48), e);
    }
    memcpy(d + i, s + i, bytes - i);
    /* Streaming stores are not ordered by a release: whoever publishes next must not overtake them. */
    _mm_sfence();
}
#else
void sr_copy_streaming(void *to, const void *from, uint64_t bytes) { memcpy(to, from, bytes); }
#endif
