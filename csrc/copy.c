/* copy.c - copy bytes into a slot.
 *
 * The core that writes a batch larger than the caches does not read it again. Ordinary stores would fetch each line of
 * the slot from memory first, and would evict lines that the other processes need. Streaming stores do neither. But
 * some processors are slower with them, so the first large batches are copied in both ways alternately, and timed.
 * docs/architecture.md has the measurement.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "internal.h"

#define CLEAN 3   /* undisturbed copies needed in each way */
#define TRIES 100 /* then the measurements so far decide */

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
        /* Prefetch farther ahead than the processor does by itself. A prefetch after the end is harmless. */
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
    /* A release does not order streaming stores: the next publish must not overtake them. */
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

/* Return whether the processor has AVX-512 and the operating system saves its registers. The compiler's run-time
 * library cannot tell: zig's always says no. */
static bool has_avx512(void)
{
    const unsigned saved = 0xe6; /* the registers of SSE, of AVX, and the three parts of AVX-512's */
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

/* ---- the choice of a way ----------------------------------------------------------------------------------------- */

static _Atomic uint32_t chosen; /* of this process; forked children inherit it */
static _Atomic uint32_t trying; /* 1: a thread measures (in a child forked meanwhile, none does) */
static struct {
    uint64_t least[SR_COPY_WAYS]; /* ps per byte */
    int clean[SR_COPY_WAYS], tries;
} trial; /* only the thread that has set `trying` uses it */

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

/* Count the page faults and thread switches that would spoil a measurement. */
static long context_switches(void)
{
    struct rusage use;
    return getrusage(RUSAGE_THREAD, &use) ? -1 : use.ru_minflt + use.ru_majflt + use.ru_nivcsw;
}

static void try_one(char *to, const char *const *from, uint64_t n, uint64_t each)
{
    const uint32_t widest = sr_copy_widest(), way = (trial.tries + 1) & 2 ? widest : SR_COPY_MEMCPY; /* A B B A */
    const long before = context_switches();
    const uint64_t begin = sr_now();
    copy_all(way, to, from, n, each);
    const uint64_t took = (sr_now() - begin) * 1000 / (n * each);
    trial.tries++;
    if (before >= 0 && context_switches() == before) {
        if (!trial.clean[way]++ || took < trial.least[way])
            trial.least[way] = took;
    }
    const bool both = trial.clean[widest] >= CLEAN && trial.clean[SR_COPY_MEMCPY] >= CLEAN;
    if (both || trial.tries >= TRIES) {
        const bool both = trial.clean[widest] && trial.clean[SR_COPY_MEMCPY];
        sr_copy_choose(both && trial.least[SR_COPY_MEMCPY] <= trial.least[widest] ? SR_COPY_MEMCPY : widest);
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

/* ---- once per segment -------------------------------------------------------------------------------------------- */

void sr_copy_report(sr_header *header)
{
    if (sr_copy_chosen())
        sr_store_relaxed(&header->copies, sr_copy_chosen());
}
