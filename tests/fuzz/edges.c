/* edges.c - which edges of the program a case takes.
 *
 * It is preloaded with modules that were compiled with gcc's -fsanitize-coverage=trace-pc: each of their
 * basic blocks calls __sanitizer_cov_trace_pc. An edge is a pair of points; as in AFL, a table of counters, into which
 * pairs are hashed, represents all of them. tests/fuzz/edges.py reads it.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define BITS 17
#define EDGES (1u << BITS)

static uint8_t taken[EDGES]; /* how often, in this case */
static uint8_t seen[EDGES];  /* in all cases: a bit for each class of counts */
static __thread bool counting;
static __thread uint64_t before;

static void take(uint64_t point)
{
    uint64_t edge = ((point ^ (before >> 1)) * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - BITS);
    taken[edge] += taken[edge] != 255;
    before = point;
}

/* Two passes through a loop differ from one; 40 passes count as 50. */
static uint8_t class_of(uint8_t count)
{
    static const uint8_t last[] = {1, 2, 3, 7, 15, 31, 127, 255};
    unsigned class = 0;
    while (count > last[class])
        class++;
    return (uint8_t)(1u << class);
}

void __sanitizer_cov_trace_pc(void)
{
    if (counting)
        take((uint64_t)(uintptr_t)__builtin_return_address(0));
}

/* A point without compiled counters: a line of Python. */
void edges_line(uint64_t point)
{
    if (counting)
        take(point);
}

void edges_begin(void)
{
    memset(taken, 0, sizeof taken);
    before = 0;
    counting = true;
}

/* Ends a case in the thread of edges_begin; returns how many edges, or counts of edges, were new. */
unsigned edges_end(void)
{
    unsigned fresh = 0;
    counting = false;
    for (unsigned i = 0; i < EDGES; i++) {
        uint8_t class = taken[i] ? class_of(taken[i]) : 0;
        fresh += (class & ~seen[i]) != 0;
        seen[i] |= class;
    }
    return fresh;
}

/* Returns how many edges all cases took together. */
unsigned edges_seen(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < EDGES; i++)
        count += seen[i] != 0;
    return count;
}

void edges_forget(void) { memset(seen, 0, sizeof seen); }
