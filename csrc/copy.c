/* copy.c - bytes on their way into a slot.
 *
 * A batch that is larger than the caches is not read again by the core that wrote it: ordinary stores would
 * first fetch each line of the slot from memory, and push out of the caches what the other processes need.
 * Streaming stores do neither. Some processors are slower by them nevertheless, so the first large batches are
 * copied in both ways, in turn, and timed. docs/architecture.md has the measurement.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "handle.h"

#define CLEAN 3   /* copies in each way that nothing has disturbed */
#define TRIES 100 /* then what was measured decides */

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define AHEAD 4096

static void stream16(char *to, const char *from, uint64_t bytes)
{
    uint64_t i = (-(uintptr_t)to) & 15;
    if (i > bytes)
        i = bytes;
    memcpy(to, from, i);
    for (; i + 64 <= bytes; i += 64) {
        /* Further ahead than the processor looks by itself; beyond the end it does nothing. */
        _mm_prefetch(from + i + AHEAD, _MM_HINT_NTA);
        __m128i a = _mm_loadu_si128((const __m128i *)(from + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(from + i + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + i + 32));
        __m128i e = _mm_loadu_si128((const __m128i *)(from + i + 48));
        _mm_stream_si128((__m128i *)(to + i), a);
        _mm_stream_si128((__m128i *)(to + i + 16), b);
        _mm_stream_si128((__m128i *)(to + i + 32), c);
        _mm_stream_si128((__m128i *)(to + i + 48), e);
    }
    memcpy(to + i, from + i, bytes - i);
    /* Streaming stores are not ordered by a release: whoever publishes next must not overtake them. */
    _mm_sfence();
}

__attribute__((target("avx512f"))) static void stream64(char *to, const char *from, uint64_t bytes)
{
    uint64_t i = (-(uintptr_t)to) & 63;
    if (i > bytes)
        i = bytes;
    memcpy(to, from, i);
    for (; i + 64 <= bytes; i += 64) {
        _mm_prefetch(from + i + AHEAD, _MM_HINT_NTA);
        _mm512_stream_si512((void *)(to + i), _mm512_loadu_si512((const void *)(from + i)));
    }
    memcpy(to + i, from + i, bytes - i);
    _mm_sfence();
}

/* Whether the processor has AVX-512 and the system saves its registers; not by the compiler's run-time library, of
 * which zig's says no everywhere. */
static bool has_avx512(void)
{
    const unsigned saved = 0xe6; /* SSE's, AVX's and the three parts of AVX-512's registers */
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & saved) == saved && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX512F);
}

uint32_t sr_copy_widest(void) { return has_avx512() ? SR_COPY_STREAM64 : SR_COPY_STREAM16; }
#else
uint32_t sr_copy_widest(void) { return SR_COPY_MEMCPY; }
#endif

void sr_copy_by(uint32_t way, void *to, const void *from, uint64_t bytes)
{
#if defined(__x86_64__)
    if (way == SR_COPY_STREAM64) {
        stream64(to, from, bytes);
        return;
    }
    if (way == SR_COPY_STREAM16) {
        stream16(to, from, bytes);
        return;
    }
#endif
    (void)way;
    memcpy(to, from, bytes);
}

/* ---- which way --------------------------------------------------------------------------------------------- */

static _Atomic uint32_t chosen; /* of this process, and of those that it forks */
static _Atomic uint32_t trying; /* 1: a thread measures. (In a child that is forked meanwhile nobody does.) */
static struct {
    uint64_t least[SR_COPY_WAYS]; /* ps per byte */
    int clean[SR_COPY_WAYS], tries;
} trial; /* whoever has set `trying` */

uint32_t sr_copy_chosen(void) { return atomic_load_explicit(&chosen, memory_order_relaxed); }

void sr_copy_choose(uint32_t way)
{
    if (way >= SR_COPY_MEMCPY && way <= sr_copy_widest() && sr_copy_chosen() == SR_COPY_UNKNOWN)
        atomic_store_explicit(&chosen, way, memory_order_relaxed);
}

static void copy_all(uint32_t way, char *to, const char *const *from, uint64_t n, uint64_t each)
{
    for (uint64_t i = 0; i < n; i++)
        sr_copy_by(way, to + i * each, from[i], each);
}

/* What would spoil a measurement: pages touched for the first time, and others who had the processor meanwhile. */
static long disturbances(void)
{
    struct rusage use;
    return getrusage(RUSAGE_THREAD, &use) ? -1 : use.ru_minflt + use.ru_majflt + use.ru_nivcsw;
}

static void try_one(char *to, const char *const *from, uint64_t n, uint64_t each)
{
    const uint32_t widest = sr_copy_widest(), way = (trial.tries + 1) & 2 ? widest : SR_COPY_MEMCPY; /* A B B A */
    const long before = disturbances();
    const uint64_t begin = sr_now();
    copy_all(way, to, from, n, each);
    const uint64_t took = (sr_now() - begin) * 1000 / (n * each);
    trial.tries++;
    if (before >= 0 && disturbances() == before) {
        if (!trial.clean[way]++ || took < trial.least[way])
            trial.least[way] = took;
    }
    const bool both = trial.clean[widest] >= CLEAN && trial.clean[SR_COPY_MEMCPY] >= CLEAN;
    if (both || trial.tries >= TRIES) {
        const bool told = trial.clean[widest] && trial.clean[SR_COPY_MEMCPY];
        sr_copy_choose(told && trial.least[SR_COPY_MEMCPY] <= trial.least[widest] ? SR_COPY_MEMCPY : widest);
    }
}

void sr_copy_rows(char *to, const char *const *from, uint64_t n, uint64_t each)
{
    if (sr_copy_chosen() == SR_COPY_UNKNOWN) {
        const char *wanted = getenv("SLIPRING_COPY");
        uint32_t nobody = 0;
        if (wanted && *wanted)
            sr_copy_choose(strcmp(wanted, "memcpy") ? sr_copy_widest() : SR_COPY_MEMCPY);
        else if (sr_copy_widest() == SR_COPY_MEMCPY)
            sr_copy_choose(SR_COPY_MEMCPY);
        else if (atomic_compare_exchange_strong_explicit(&trying, &nobody, 1, memory_order_acquire,
                                                         memory_order_relaxed)) {
            try_one(to, from, n, each);
            atomic_store_explicit(&trying, 0, memory_order_release);
            return;
        }
    }
    const uint32_t way = sr_copy_chosen();
    copy_all(way ? way : sr_copy_widest(), to, from, n, each); /* unknown: another thread is measuring */
}

/* ---- once per segment ---------------------------------------------------------------------------------------- */

void sr_copy_tell(sr_header *header)
{
    if (sr_copy_chosen())
        sr_store_relaxed(&header->copies, sr_copy_chosen());
}
